// SPDX-License-Identifier: BSD-3-Clause

// Bytes that a report says would be freed by a change, against the bytes after the change.
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"

namespace remat {
namespace {

constexpr size_t kSquareBytes = 4 * 8 * 8;  // bytes of a float32 [8, 8]

const std::string kDevice = default_device().is_cpu() ? "cpu" : "cuda:0";

at::Tensor square() {
  return torch::rand({8, 8}).requires_grad_().sin();
}

at::Tensor saved_exp(const at::Tensor& x, const std::string& name, Policy policy = Policy::kSave) {
  return native_op([](const at::Tensor& t) { return t.exp(); }, name, policy)(x);
}

/// A call whose result is read, but not saved by autograd.
at::Tensor saved_sum(const at::Tensor& x, const std::string& name, Policy policy = Policy::kSave) {
  return native_op([](const at::Tensor& t) { return t + t; }, name, policy)(x);
}

/// Returns the change with `words` in its reason.
const MemoryChange& change_of(const MemoryReport& report, const std::string& words) {
  const auto found = std::find_if(
      report.changes.begin(), report.changes.end(),
      [&](const MemoryChange& change) { return change.reason.find(words) != std::string::npos; });
  INFO(report.str());
  REQUIRE(found != report.changes.end());
  return *found;
}

bool has_change(const MemoryReport& report, const std::string& words) {
  return std::any_of(report.changes.begin(), report.changes.end(), [&](const MemoryChange& change) {
    return change.reason.find(words) != std::string::npos;
  });
}

/// Returns the bytes that a model of three rules and two matrix products keeps.
size_t bytes_by(PolicyTable table) {
  const at::Tensor w = torch::rand({8, 8}).requires_grad_();
  const at::Tensor y = checkpoint({.policy = make_policy(std::move(table))})(
      [&](const at::Tensor& x) { return (x.mm(w).sin().exp() + 1).mm(w).tanh(); })(square());
  return memory_report().bytes;
}

}  // namespace

TEST_CASE("A change of a rule frees what the report said", "[inspect][memory_changes]") {
  const size_t without_exp = bytes_by(PolicyTable().op("aten::mm", Policy::kSave));
  const size_t without_mm = bytes_by(PolicyTable().op("aten::exp", Policy::kSave));
  const at::Tensor w = torch::rand({8, 8}).requires_grad_();
  PolicyTable table;
  table.op("aten::exp", Policy::kSave).op("aten::mm", Policy::kSave);
  const at::Tensor y = checkpoint({.policy = make_policy(table)})(
      [&](const at::Tensor& x) { return (x.mm(w).sin().exp() + 1).mm(w).tanh(); })(square());
  const MemoryReport report = memory_report();
  const MemoryChange& exp = change_of(report, "rule op 'aten::exp' -> SAVE (code)");
  CHECK(exp.change == (default_device().is_cpu() ? "RECOMPUTE instead of SAVE"
                                                 : "RECOMPUTE instead of SAVE, or OFFLOAD"));
  CHECK(exp.device == kDevice);
  CHECK(exp.regions == 1);
  CHECK(exp.bytes == report.bytes - without_exp);
  const MemoryChange& mm = change_of(report, "rule op 'aten::mm' -> SAVE (code)");
  CHECK(mm.bytes >= report.bytes - without_mm);
}

TEST_CASE("Rules by tags, for calls and of presets are found", "[inspect][memory_changes]") {
  const auto report_of = [](PolicyTable table) {
    const at::Tensor w = torch::rand({8, 8}).requires_grad_();
    const at::Tensor y = checkpoint({.policy = make_policy(std::move(table))})(
        [&](const at::Tensor& x) { return saved_exp(x.mm(w).tanh(), "a").cos(); })(square());
    return memory_report();
  };
  CHECK(has_change(report_of(PolicyTable().op("tag:pointwise", Policy::kSave)),
                   "rule op 'tag:pointwise' -> SAVE (code)"));
  CHECK(has_change(report_of(save_matmuls()), " -> SAVE (save_matmuls)"));
  CHECK(has_change(report_of(PolicyTable().call("a", Policy::kSave)),
                   "rule call 'a' -> SAVE (code)"));
  const MemoryReport by_call = report_of(PolicyTable().call("aten::tanh#0", Policy::kSave));
  CHECK(has_change(by_call, "rule call 'aten::tanh#0' -> SAVE (code)"));
  // A rule with another policy is not the reason.
  CHECK(has_change(report_of(PolicyTable().call("b*", Policy::kSave)), "SAVE of call 'a'"));
}

TEST_CASE("Of a policy's function the op is named", "[inspect][memory_changes]") {
  const auto save_tanh = [](const PolicyQuery& query) -> std::optional<Policy> {
    if (query.op.info().name() != "aten::tanh") return std::nullopt;
    return Policy::kSave;
  };
  PolicyTable table;  // decides where the function does not
  table.op("aten::tanh", Policy::kSave);
  const at::Tensor y = checkpoint({.policy = make_policy(std::move(table), save_tanh)})(
      [&](const at::Tensor& x) { return x.tanh().cos(); })(square());
  CHECK(change_of(memory_report(), "SAVE of op aten::tanh").bytes == kSquareBytes);
}

TEST_CASE("A reader and the call that it reads are both named", "[inspect][memory_changes]") {
  const at::Tensor y = checkpoint()(
      [](const at::Tensor& x) { return (saved_sum(x.cos(), "scale") + 1).exp(); })(square());
  const MemoryReport report = memory_report();
  const MemoryChange& call = change_of(report, "SAVE of call 'scale'");
  const MemoryChange& reader =
      change_of(report, "aten::add.Scalar reads the result of call 'scale'");
  CHECK(call.bytes == kSquareBytes);
  CHECK(reader.bytes == kSquareBytes);
  CHECK(reader.change == "run it in that call, or in one of its own");
  // Both changes free the same bytes, which bytes_so_far counts once.
  CHECK(std::max(call.bytes_so_far, reader.bytes_so_far) == 2 * kSquareBytes);
}

TEST_CASE("Calls and regions that differ by a number are one line", "[inspect][memory_changes]") {
  std::vector<at::Tensor> results;
  at::Tensor x = square();
  for (const char* const name : {"0", "1", "2", "10"}) {
    x = checkpoint({.name = std::string("layer.") + name})([&](const at::Tensor& h) {
      return saved_exp(h.sin(), std::string("layer.") + name + "/exp").cos();
    })(x);
    results.push_back(x);
  }
  const MemoryChange change = change_of(memory_report(), "SAVE of call");
  CHECK(change.reason == "SAVE of call 'layer.0-2/exp, layer.10/exp'");
  CHECK(change.regions == 4);
  CHECK(change.bytes == 4 * kSquareBytes);
}

TEST_CASE("What two choices hold goes with both", "[inspect][memory_changes]") {
  const at::Tensor y = checkpoint()([](const at::Tensor& x) {
    const at::Tensor a = saved_exp(x.cos(), "a");  // autograd saves it in the call
    return saved_exp(a, "first") * saved_exp(a, "second");
  })(square());
  const MemoryReport report = memory_report();
  size_t last = 0;
  for (const MemoryChange& change : report.changes) {
    CHECK(change.bytes_so_far >= std::max(last, change.bytes));
    last = change.bytes_so_far;
  }
  CHECK(last == report.bytes);  // the choices account for every byte
}

TEST_CASE("What a call saves of another call's result is that one's choice",
          "[inspect][memory_changes]") {
  const at::Tensor w = torch::rand({8, 8}).requires_grad_();
  const auto report_of = [&](Policy of_mm, Policy of_call) {
    const auto options = CheckpointOptions{.policy = make_policy(PolicyTable().op("mm", of_mm))};
    const at::Tensor y = checkpoint(options)([&](const at::Tensor& x) {
      const auto call = [](const at::Tensor& t) { return t.sin(); };
      return native_op(call, "call", of_call)(x.sin().mm(w)).tanh();
    })(square());
    return memory_report();
  };
  const MemoryReport both = report_of(Policy::kSave, Policy::kSave);
  const size_t without_mm = report_of(Policy::kRecompute, Policy::kSave).bytes;
  const size_t without_call = report_of(Policy::kSave, Policy::kRecompute).bytes;
  INFO(both.str());
  CHECK(change_of(both, "rule op 'mm'").bytes == both.bytes - without_mm);
  CHECK(change_of(both, "SAVE of call 'call'").bytes == both.bytes - without_call);
}

TEST_CASE("Storages that others hold do not count", "[inspect][memory_changes]") {
  const at::Tensor x = square();
  // The first region's argument is also the second region's argument.
  const at::Tensor y = checkpoint()([](const at::Tensor& h) { return h.sin().exp(); })(x);
  const at::Tensor z = checkpoint()([&](const at::Tensor& h) {
    return native_op([&](const at::Tensor& t) { return t * x; }, "reads", Policy::kSave)(h.sin());
  })(x);
  const MemoryReport report = memory_report();
  INFO(report.str());
  // The call's saved tensor is the argument itself, which both regions hold.
  CHECK(change_of(report, "SAVE of call 'reads'").bytes == 0);
  CHECK(report.changes.back().bytes_so_far == kSquareBytes);
}

TEST_CASE("Leaves and collectives are nobody's choice", "[inspect][memory_changes]") {
  const at::Tensor w = torch::rand({8, 8}).requires_grad_();
  const at::Tensor y = checkpoint()([](const at::Tensor& x) { return x.exp().sum(); })(w);
  CHECK(memory_report().changes.empty());
  CHECK(memory_report().str().find("to free memory") == std::string::npos);
}

TEST_CASE("The text says which changes are enough", "[inspect][memory_changes]") {
  const at::Tensor y = checkpoint({.name = "block"})(
      [](const at::Tensor& x) { return (saved_sum(x.cos(), "scale") + 1).exp(); })(square());
  const MemoryReport report = memory_report();
  INFO(report.changes_str());
  CHECK(report.changes_str("meta") == "regions hold nothing on meta that a change would free\n");
  CHECK(report.str().ends_with(report.changes_str()));
  CHECK_THAT(report.changes_str(),
             ContainsSubstring("to free memory of " + kDevice +
                               ", change (estimated bytes freed: by it alone, "
                               "with those above):\n  256  256  "));
  CHECK_THAT(report.changes_str(kDevice, kSquareBytes),
             ContainsSubstring("256 bytes of " + kDevice + " are wanted; to free memory") &&
                 ContainsSubstring("enough\n") && !ContainsSubstring("not enough"));
  CHECK_THAT(report.changes_str(kDevice, 2 * kSquareBytes),
             ContainsSubstring("enough with those above\n"));
  CHECK_THAT(report.changes_str(kDevice, 4 * kSquareBytes),
             ContainsSubstring("all of these together are not enough\n"));
}

TEST_CASE("Values between the parts of a cut tape are a choice", "[inspect][memory_changes]") {
  const CheckpointOptions options{.replay = ReplayEngine::kTape, .cuts = {.positions = {1, 2}}};
  const at::Tensor y =
      checkpoint(options)([](const at::Tensor& x) { return x.sin().exp().cos(); })(square());
  const MemoryReport report = memory_report();
  INFO(report.str());
  CHECK(has_change(report, "values between the parts of tapes that are cut"));
  CHECK(report.changes.back().bytes_so_far == report.bytes);
}

}  // namespace remat
