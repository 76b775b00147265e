// SPDX-License-Identifier: BSD-3-Clause

// Values from which segments of a cut tape start: which are kept, how long, and lists of them.
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/cut_step.h"
#include "support/error_text.h"
#include "support/named_step.h"

namespace remat {
namespace {

constexpr size_t kBytes = 32 * sizeof(float);  // bytes of a tensor like step_input()

using Kept = std::vector<Cuts::Kept>;

/// Returns the index of the first record whose op is `op`.
size_t record_of(const TensorFn& fn, const std::string& op) {
  const std::vector<std::string> ops = ops_of(fn);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i] == op) return i;
  }
  FAIL("no record of " << op);
  return 0;
}

/// Returns the number of tensors that the forward keeps.
size_t tensors_kept(const TensorFn& fn, const Cuts& cuts) {
  const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
  return memory_report().bytes / kBytes;
}

/// Counts the tensors that are put into it, and how many of their tickets are alive.
class CountingStore final : public OffloadStore {
 public:
  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    ++puts;
    return std::make_shared<Counted>(live, tensor.clone());
  }

  int puts = 0;
  std::shared_ptr<int> live = std::make_shared<int>(0);

 private:
  class Counted final : public Ticket {
   public:
    Counted(std::shared_ptr<int> live, at::Tensor copy)
        : live_(std::move(live)), copy_(std::move(copy)) {
      ++*live_;
    }
    ~Counted() override { --*live_; }
    at::Tensor get() override { return copy_; }

   private:
    std::shared_ptr<int> live_;
    at::Tensor copy_;
  };
};

/// Three pairs of ops, each a segment: the argument of its first op and the result of its second
/// are saved.
at::Tensor three_pairs(const at::Tensor& x) {
  return x.sin().exp().sin().exp().sin().exp();
}

}  // namespace

TEST_CASE("An input of a segment is let go with the last saved tensor that is made from it",
          "[backend][cuts]") {
  size_t kept = 0;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor a = x.sin();
    const at::Tensor b = x.cos();
    const at::Tensor left = a.sin();
    left.register_hook([&](const at::Tensor&) { kept = memory_report().bytes / kBytes; });
    return left.exp() * b.cos().exp();
  };
  const Cuts cuts{.positions = {2}};
  check_cut(fn, cuts);
  const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
  CHECK(memory_report().bytes == 2 * kBytes);
  y.sum().backward();
  CHECK(kept == 1);  // b is released, and a is kept for the backward of a.sin()
}

TEST_CASE("A retained graph keeps the values that its replays start from", "[backend][cuts]") {
  const at::Tensor x = step_input();
  const at::Tensor y = checkpoint(with_cuts({.positions = {2, 4}}))(three_pairs)(x);
  y.sum().backward({}, /*retain_graph=*/true);
  CHECK(memory_report().bytes == 2 * kBytes);
  const at::Tensor first = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  y.sum().backward();
  CHECK(same_bits(x.grad(), first));
  CHECK(memory_report().regions.empty());
}

TEST_CASE("A value that a late segment keeps is not recomputed by the segment that made it",
          "[backend][cuts]") {
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor skip = x.sin().exp().tan();  // needed by its segment's backward too
    return skip.atan().asinh() * skip;            // and read by the last segment
  };
  const Cuts cuts{.positions = {3, 4, 5}};
  check_cut(fn, cuts);
  const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
  CHECK(memory_report().bytes == 3 * kBytes);  // the results of tan, atan and asinh
  OpCounts counts;
  y.sum().backward();
  CHECK(counts["aten::tan"] == 0);
  CHECK(counts["aten::exp"] == 1);  // exp's own backward needs its result
}

TEST_CASE("Saved tensors that the function itself frees start from nothing", "[backend][cuts]") {
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor a = x.sin().exp();
    static_cast<void>(a.clone().sin());  // its node dies at once
    return a.tan().atan() * a;
  };
  const Cuts cuts{.positions = {2, 4, 5, 6}};
  check_cut(fn, cuts);
  Cuts grouped = cuts;
  grouped.groups = {{0, 3}, {0, 2}};
  check_cut(fn, grouped);
  const size_t tan = record_of(fn, "aten::tan");
  check_cut(fn, {.positions = {2, 4}, .keep = Kept{{.record = 1}, {.record = tan}}});
}

TEST_CASE("A listed value that only the segment wants that made it may be kept by a late reader",
          "[backend][cuts]") {
  const TensorFn fn = [](const at::Tensor& x) {
    at::Tensor a = x.sin().clone();  // 0, 1
    a.sigmoid_();                    // 2, which saves its result
    return a.sin().sin().exp() + a;  // 3 to 6: no replay reads the operand of +
  };
  // No result of record 1 is kept, because sigmoid_ does not run again: its result is still there
  // when + has read it.
  check_cut(fn, {.positions = {1, 2, 3, 4, 5},
                 .groups = {{0, 2}, {2, 4}},
                 .keep = Kept{{.record = 2}, {.record = 3}, {.record = 4}}});
}

TEST_CASE("A list of values is what crosses cuts, and nothing else", "[backend][cuts]") {
  const auto crossing = Kept{{.record = 1}, {.record = 3}};
  const Cuts cuts{.positions = {2, 4}, .keep = crossing};
  check_cut(three_pairs, cuts);
  CHECK(tensors_kept(three_pairs, cuts) == 2);
  Cuts more = cuts;
  more.keep = Kept{{.record = 0}, {.record = 1}, {.record = 3}};  // nothing needs exp's argument
  check_cut(three_pairs, more);
  CHECK(tensors_kept(three_pairs, more) == 2);
  more.groups = {{0, 2}};
  check_cut(three_pairs, more);
  CHECK(tensors_kept(three_pairs, more) == 1);
  // A tensor is not kept if a segment's forward reads it and the segment's replay does not.
  const TensorFn adds = [](const at::Tensor& x) {
    const at::Tensor a = x.sin().exp();
    return (a + 1).sin() + a.tan();
  };
  const size_t tan = record_of(adds, "aten::tan");
  check_cut(adds, {.positions = {2}, .keep = Kept{{.record = 1}, {.record = tan}}});
  CHECK(tensors_kept(adds, {.positions = {2}, .keep = Kept{{.record = 1}, {.record = tan}}}) == 2);
}

TEST_CASE("A list says which results of an op with several are kept", "[backend][cuts]") {
  const TensorFn fn = [](const at::Tensor& x) {
    return std::get<0>(torch::native_batch_norm(x.exp(), {}, {}, {}, {}, true, 0.1, 1e-5)).sin();
  };
  const size_t norm = record_of(fn, "aten::native_batch_norm");
  REQUIRE(norm == 1);
  const auto reruns = [&](Kept keep) {
    const Cuts cuts{.positions = {2}, .keep = std::move(keep)};
    check_cut(fn, cuts);
    const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
    OpCounts counts;
    y.sum().backward();
    return counts["aten::native_batch_norm"];
  };
  CHECK(reruns({{.record = 1, .result = 0}}) == 1);  // runs again for its statistics
  CHECK(reruns({{1, 0}, {1, 1}, {1, 2}}) == 0);
  CHECK(reruns({{1, 0}, {1, 2}}) == 1);
}

TEST_CASE("A list may name what an op has written, before and after", "[backend][cuts]") {
  const TensorFn fn = [](const at::Tensor& x) {
    at::Tensor y = x.sin();        // 0
    const at::Tensor a = y.exp();  // 1
    y.mul_(3);                     // 2
    return (y.sin() * a).tanh();   // 3 to 5
  };
  check_cut(fn, {.positions = {3}, .keep = Kept{{.record = 1}, {.record = 2}}});
  check_cut(fn, {.positions = {1, 2, 3}, .keep = Kept{{0}, {1}, {2}}});
  check_cut(fn, {.positions = {1, 2, 3}, .groups = {{0, 3}}, .keep = Kept{{0}, {1}, {2}}});
  CHECK(tensors_kept(fn, {.positions = {3}, .keep = Kept{{.record = 1}, {.record = 2}}}) == 2);
}

TEST_CASE("A kept tensor may be laid out anew in place", "[backend][cuts]") {
  const TensorFn fn = [](const at::Tensor& x) {
    at::Tensor y = x.exp().sin();  // 0, 1: nothing has saved the result that t_() lays out anew
    y.t_();
    at::Tensor z = y.cos();  // 2
    z.squeeze_().unsqueeze_(0);
    return z.sin().sin();
  };
  check_cut(fn, {.positions = {2, 3}, .keep = Kept{{.record = 1}, {.record = 2}}});
  check_cut(fn, {.positions = {1, 2, 3}, .keep = Kept{{0}, {1}, {2}}});
  check_cut(fn, {.positions = {1, 2, 3}, .groups = {{0, 3}}, .keep = Kept{{0}, {1}, {2}}});
  const auto saves = make_policy(PolicyTable().op("aten::sin", Policy::kSave));
  check_cut(fn, {.positions = {2, 3}, .policies = {saves, nullptr, nullptr}});
}

TEST_CASE("One segment may have a list", "[backend][cuts]") {
  const Cuts cuts{.keep = Kept{{.record = 1}}};
  check_cut(three_pairs, cuts);
  CHECK(tensors_kept(three_pairs, cuts) == 1);
  const at::Tensor y = checkpoint(with_cuts(cuts))(three_pairs)(step_input());
  OpCounts counts;
  y.sum().backward();
  CHECK(counts["aten::exp"] == 2);  // The exp whose result is kept does not run.
}

TEST_CASE("A listed value of a group is offloaded when it is made", "[backend][cuts]") {
  const auto store = std::make_shared<CountingStore>();
  int puts_when_made = 0;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor made = x.sin().exp().sin().exp();
    puts_when_made = store->puts;
    return made.sin().exp();
  };
  CheckpointOptions options = with_cuts({.positions = {2, 4}, .groups = {{0, 2}}});
  options.cuts.keep = Kept{{.record = 1}, {.record = 3, .policy = Policy::kOffload}};
  options.offload_store = store;
  check_as_plain(fn, {}, options);
  const at::Tensor y = checkpoint(options)(fn)(step_input());
  CHECK(puts_when_made == store->puts);
  CHECK(*store->live == 1);
}

TEST_CASE("A listed value is offloaded even if it is read late", "[backend][cuts]") {
  const auto store = std::make_shared<CountingStore>();
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor made = x.exp().sin();  // the backward of neither op needs this value
    return x.cos().exp().sin().exp().sin().exp() * made;
  };
  CheckpointOptions options = with_cuts({.positions = {2, 4, 6}});
  options.cuts.keep = Kept{{.record = 1, .policy = Policy::kOffload},
                           {.record = 3, .policy = Policy::kOffload},
                           {.record = 5, .policy = Policy::kOffload}};
  options.offload_store = store;
  check_as_plain(fn, {}, options);
  const at::Tensor y = checkpoint(options)(fn)(step_input());
  CHECK(store->puts == 2 * 3);  // three in each of two forwards
  CHECK(*store->live == 3);
  CHECK(memory_report().bytes == 0);
}

TEST_CASE("A listed value may be offloaded", "[backend][cuts]") {
  CheckpointOptions options = with_cuts({.positions = {2, 4}});
  options.cuts.keep = Kept{{.record = 1, .policy = Policy::kOffload}, {.record = 3}};
  options.offload_store = host_memory_store();
  check_same(step(checkpoint(options)(three_pairs)), step(three_pairs));
  options.offload_store = nullptr;
  CHECK_THAT(error_text([&] { checkpoint(options); }),
             ContainsSubstring("region 'r': cuts.keep") && ContainsSubstring("offload_store"));
}

TEST_CASE("A store that has more on its way than was planned for is refused", "[backend][cuts]") {
  PlannedCuts cuts{{.positions = {2, 4},
                    .keep = Kept{{.record = 1, .policy = Policy::kOffload}, {.record = 3}}}};
  cuts.offload = OffloadTerms{
      .places = {{}}, .min_bytes = 8, .prefetch_bytes = 1000, .max_leaving_bytes = 2000};
  CheckpointOptions options = with_cuts(cuts);
  const auto refusal = [&](const OffloadOptions& engine) {
    options.offload_store = offload_engine(engine);
    return error_text([&] { checkpoint(options); });
  };
  const OffloadOptions planned{.min_bytes = 8, .prefetch_bytes = 1000, .max_leaving_bytes = 2000};
  options.offload_store = offload_engine(planned);
  check_same(step(checkpoint(options)(three_pairs)), step(three_pairs));
  options.offload_store = host_memory_store();  // the store waits for each copy
  check_same(step(checkpoint(options)(three_pairs)), step(three_pairs));
  OffloadOptions other = planned;
  other.min_bytes = 9;
  CHECK_THAT(refusal(other), ContainsSubstring("min_bytes of at most 8 bytes") &&
                                 ContainsSubstring("got 9") && ContainsSubstring("region 'r'"));
  other = planned;
  other.prefetch_bytes = 1001;
  CHECK_THAT(refusal(other), ContainsSubstring("prefetch_bytes of at most 1000 bytes"));
  other = planned;
  other.max_leaving_bytes = OffloadOptions{}.max_leaving_bytes;
  CHECK_THAT(refusal(other), ContainsSubstring("max_leaving_bytes of at most 2000 bytes"));
}

TEST_CASE("A malformed list of values is refused", "[backend][cuts][errors]") {
  const auto refusal = [](Kept keep, std::vector<size_t> positions = {2, 4}) {
    const Cuts cuts{.positions = std::move(positions), .keep = std::move(keep)};
    return error_text([&] { checkpoint(with_cuts(cuts))(three_pairs)(step_input()); });
  };
  CHECK_THAT(refusal({{.record = 3}, {.record = 1}}),
             ContainsSubstring("[checkpoint] region 'r': cuts.keep[1]: expected a value after "
                               "result 0 of record 3, got result 0 of record 1"));
  CHECK_THAT(refusal({{.record = 3}, {.record = 3}}), ContainsSubstring("Give each value once"));
  CHECK_THAT(refusal({{.record = 1, .policy = Policy::kRecompute}}),
             ContainsSubstring("cuts.keep[0]: expected SAVE or OFFLOAD, got RECOMPUTE"));
  CHECK_THAT(refusal({{.record = 1}, {.record = 3}, {.record = 99}}),
             ContainsSubstring("region 'r': cuts.keep[2]") &&
                 ContainsSubstring("6 records, got result 0 of record 99"));
  CHECK_THAT(refusal({{.record = 1, .result = 1}, {.record = 3}}),
             ContainsSubstring("cuts.keep[0]") && ContainsSubstring("result 1 of record 1"));
  CHECK_THAT(refusal({{.record = 1}}), ContainsSubstring("region 'r': cuts.keep") &&
                                           ContainsSubstring("aten::exp") &&
                                           ContainsSubstring("record 3"));
  CHECK(memory_report().regions.empty());
}

}  // namespace remat
