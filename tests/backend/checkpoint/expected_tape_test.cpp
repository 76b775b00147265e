// SPDX-License-Identifier: BSD-3-Clause

// Cuts that were made for another tape apply up to the first difference; results stay bitwise
// equal.
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/planned_cuts.h>
#include <remat/remat.h>

#include "support/catch.h"
#include "support/cut_step.h"
#include "support/error_text.h"
#include "support/named_step.h"

namespace remat {
namespace {

constexpr size_t kTensorBytes = 32 * sizeof(float);  // bytes of a tensor like step_input()

using Kept = std::vector<Cuts::Kept>;

/// Returns the tape of the function with these cuts. With `{.keep = Kept{}}` it has one segment.
RegionTape tape_of(const TensorFn& fn, const Cuts& cuts) {
  const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
  return region_tapes().back();
}

ExpectedTape::Record expected_record(const Tape& tape, const TapeRecord& record) {
  std::vector<uint32_t> reads;
  std::vector<uint32_t> results;
  std::vector<std::pair<uint32_t, uint32_t>> writes;
  for (const TapeRef& ref : tape.refs(record)) {
    if (ref.defined() && std::find(reads.begin(), reads.end(), ref.value) == reads.end())
      reads.push_back(ref.value);
  }
  for (const TapeOutput& output : tape.outputs(record)) results.push_back(output.ref.value);
  for (const TapeWrite& write : tape.writes(record)) writes.emplace_back(write.before, write.after);
  return {.op = record.op->name(),
          .reads = ExpectedTape::hash_reads(record.op->name(), reads),
          .makes = ExpectedTape::hash_makes(results, writes)};
}

/// Returns, for each slot, the index of the record in which it is saved.
std::vector<uint32_t> records_of_slots(const TensorFn& fn, size_t records) {
  Cuts all;
  for (size_t i = 1; i < records; ++i) all.positions.push_back(i);
  if (records < 2) all.keep = Kept{};
  const RegionTape cut = tape_of(fn, all);
  std::vector<uint32_t> saved_in;
  for (size_t i = 0; i < std::max<size_t>(records, 1); ++i)
    saved_in.insert(saved_in.end(), cut.tape().parts()[i].slots.size(), static_cast<uint32_t>(i));
  return saved_in;
}

std::shared_ptr<const ExpectedTape> expected_of(const TensorFn& fn) {
  const RegionTape whole = tape_of(fn, {.keep = Kept{}});
  const Tape& tape = whole.tape();
  auto expected = std::make_shared<ExpectedTape>();
  for (const TapeRecord& record : tape.records())
    expected->records.push_back(expected_record(tape, record));
  const std::vector<uint32_t> saved_in = records_of_slots(fn, tape.records().size());
  const std::vector<TapeSlot>& slots = tape.parts()[0].slots;
  REQUIRE(saved_in.size() == slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    const TapeRef& ref = slots[i].ref;
    const bool is_made = !slots[i].special && ref.defined() &&
                         tape.values()[ref.value].source == TapeValue::Source::kRecord;
    expected->slots.push_back(
        {.record = saved_in[i], .value = is_made ? ref.value : ExpectedTape::kNoValue});
  }
  return expected;
}

/// Returns a list of kept values that is sufficient, but not if any one of its records is removed.
Kept least_list(const TensorFn& fn, Cuts cuts) {
  const RegionTape whole = tape_of(fn, {.keep = Kept{}});
  const std::vector<TapeRecord>& records = whole.tape().records();
  std::vector<bool> listed(records.size());
  const auto missing = [&] {  // the first missing record; none if nothing is missing
    cuts.keep = Kept{};
    for (size_t i = 0; i < records.size(); ++i) {
      const size_t made = size_t{records[i].outputs.count} + records[i].writes.count;
      for (size_t j = 0; listed[i] && j < made; ++j)
        cuts.keep->push_back({.record = i, .result = j});
    }
    const std::string error = error_text([&] { checkpoint(with_cuts(cuts))(fn)(step_input()); });
    const size_t found = error.find(", which record ");
    return found == std::string::npos ? records.size() : std::stoul(error.substr(found + 15));
  };
  for (size_t record = missing(); record < records.size(); record = missing())
    listed[record] = true;
  for (size_t i = 0; i < records.size(); ++i) {
    if (!listed[i]) continue;
    listed[i] = false;
    listed[i] = missing() < records.size();
  }
  REQUIRE(missing() == records.size());
  return *cuts.keep;
}

/// Checks that `fn` is bitwise equal to plain code with cuts made for `base`. Returns the
/// difference between the tapes, if there is one.
std::optional<TapeDifference> check_other(const TensorFn& base, const TensorFn& fn,
                                          PlannedCuts cuts, const Tensors& weights = {}) {
  std::vector<TapeDifference> told;
  if (!cuts.expected) cuts.expected = expected_of(base);
  cuts.differs = [&](const TapeDifference& difference) { told.push_back(difference); };
  check_cut(fn, cuts, weights);
  CHECK(told.size() <= 1);
  return told.empty() ? std::nullopt : std::optional(told.front());
}

void check_is(const std::optional<TapeDifference>& difference, size_t record,
              const std::string& expected, const std::string& got, bool in_slot = false) {
  REQUIRE(difference.has_value());
  CHECK(difference->record == record);
  CHECK(difference->expected == expected);
  CHECK(difference->got == got);
  CHECK(difference->in_slot == in_slot);
}

/// Number of tensors that the forward keeps, and number of calls of each op in backward.
struct Costs {
  size_t kept = 0;
  std::vector<int> calls{};
  bool operator==(const Costs&) const = default;
};

Costs costs_of(const TensorFn& fn, const PlannedCuts& cuts) {
  static const std::vector<std::string> kOps{"aten::sin", "aten::exp", "aten::tan",  "aten::mul",
                                             "aten::mm",  "aten::cos", "aten::atan", "aten::add_"};
  torch::manual_seed(5);
  const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
  Costs costs{.kept = memory_report().bytes};
  OpCounts counts;
  y.sum().backward();
  for (const std::string& op : kOps) costs.calls.push_back(counts[op]);
  return costs;
}

/// Autograd saves the argument once the function's ops have run. Returns a view of the argument.
struct SavesInput : torch::autograd::Function<SavesInput> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& t) {
    ctx->save_for_backward({t});
    return t.view_as(t);
  }
  static Tensors backward(torch::autograd::AutogradContext* ctx, Tensors grads) {
    return {grads[0] * ctx->get_saved_variables()[0].cos()};
  }
};

/// Returns a function that runs a chain of ops given by name; each op saves its argument or its
/// result. A leading "+" adds the value from three ops earlier.
TensorFn chain(std::vector<std::string> ops) {
  return [ops = std::move(ops)](const at::Tensor& x) {
    std::vector<at::Tensor> all{x};
    for (const std::string& op : ops) {
      const at::Tensor& last = all.back();
      if (op == "sin") all.push_back(last.sin());
      if (op == "exp") all.push_back(last.exp());
      if (op == "cos") all.push_back(last.cos());
      if (op == "tanh") all.push_back(last.tanh());
      if (op == "atan") all.push_back(last.atan());
      if (op == "+") all.push_back(last + all[all.size() >= 4 ? all.size() - 4 : 0]);
      if (op == "*") all.push_back(last * all[all.size() >= 4 ? all.size() - 4 : 0]);
    }
    return all.back();
  };
}

const std::vector<std::string> kTwelve{"sin", "tanh", "cos", "+",    "atan", "sin",
                                       "*",   "cos",  "+",   "tanh", "sin",  "atan"};

/// Four segments of three records, by default without groups.
PlannedCuts four_segments(std::vector<Cuts::Group> groups = {}) {
  return {{.positions = {3, 6, 9}, .groups = std::move(groups)}};
}

/// Returns these cuts without groups, in a group of two or three, and in nested groups; without a
/// list of kept values, with a list of all values and with the shortest list.
std::vector<PlannedCuts> all_kinds(const TensorFn& base) {
  std::vector<PlannedCuts> kinds;
  const std::vector<std::vector<Cuts::Group>> groupings{
      {}, {{0, 2}}, {{1, 3}}, {{2, 4}}, {{0, 2}, {2, 4}}, {{0, 4}, {1, 4}, {1, 3}}};
  for (const auto& groups : groupings) {
    PlannedCuts cuts = four_segments(groups);
    cuts.expected = expected_of(base);
    kinds.push_back(cuts);
    cuts.keep = every_value(base);
    kinds.push_back(cuts);
    cuts.keep = least_list(base, four_segments(groups));
    kinds.push_back(cuts);
  }
  return kinds;
}

}  // namespace

TEST_CASE("A tape as expected is cut as planned", "[backend][cuts]") {
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
  const std::vector<TensorFn> functions{
      chain(kTwelve),
      [&](const at::Tensor& x) {
        at::Tensor y = x.sin().mm(w);
        const at::Tensor z = y.exp();
        y = torch::dropout(z, 0.5, true).mul_(2);
        y.narrow(1, 2, 3).sigmoid_();
        at::Tensor s = x.detach().sin();
        const at::Tensor t = s.exp();
        s.add_(1);
        return (y * z).tanh() * z.sin() * s * t;
      },
      [](const at::Tensor& x) {  // each segment makes its own memory
        const at::Tensor constant = torch::empty({4, 8});
        const at::Tensor y = x.sin().exp();
        torch::sin_out(const_cast<at::Tensor&>(constant), x.detach());
        const at::Tensor z = y + constant;
        torch::exp_out(const_cast<at::Tensor&>(constant), x.detach());
        return z.cos() * constant.cos();
      }};
  for (const TensorFn& fn : functions) {
    const size_t records = ops_of(fn).size();
    PlannedCuts cuts{{.positions = {records / 3, records / 2, records - 2}}};
    const auto check_same_costs = [&] {
      for (const auto& keep : {std::optional<Kept>(), std::optional(every_value(fn)),
                               std::optional(least_list(fn, cuts))}) {
        cuts.keep = keep;
        PlannedCuts compared = cuts;
        compared.expected = expected_of(fn);
        CHECK_FALSE(check_other(fn, fn, compared, {w}));
        CHECK(costs_of(fn, compared) == costs_of(fn, cuts));
      }
    };
    check_same_costs();
    cuts.groups = {{0, 2}};
    check_same_costs();
    cuts.groups = {{0, 3}, {1, 3}};
    check_same_costs();
  }
}

TEST_CASE("An op more, less or another one ends the plan anywhere", "[backend][cuts]") {
  const TensorFn base = chain(kTwelve);
  const std::vector<std::string> names = tape_of(base, {.keep = Kept{}}).ops();
  for (const PlannedCuts& kind : all_kinds(base)) {
    for (size_t i = 0; i < kTwelve.size(); ++i) {
      INFO("record " << i << ", groups " << kind.groups.size() << ", list "
                     << (kind.keep ? kind.keep->size() : 99));
      for (const size_t rest_bytes : {size_t{0}, 3 * kTensorBytes, size_t{1} << 20}) {
        PlannedCuts cuts = kind;
        cuts.rest_bytes = rest_bytes;
        std::vector<std::string> ops = kTwelve;
        ops[i] = "exp";
        check_is(check_other(base, chain(ops), cuts), i, names[i], "aten::exp");
        ops = kTwelve;
        ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(i), "exp");
        check_is(check_other(base, chain(ops), cuts), i, names[i], "aten::exp");
        ops = kTwelve;
        ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(i));
        const auto difference = check_other(base, chain(ops), cuts);
        const bool is_last = i + 1 == kTwelve.size();
        check_is(difference, i, names[i], is_last ? "" : names[i + 1]);
      }
    }
  }
}

TEST_CASE("A function may end early, or go on", "[backend][cuts]") {
  const TensorFn base = chain(kTwelve);
  const std::vector<std::string> names = tape_of(base, {.keep = Kept{}}).ops();
  for (PlannedCuts& cuts : all_kinds(base)) {
    for (size_t i = 1; i < kTwelve.size(); ++i) {
      INFO("ends before record " << i);
      const auto end = kTwelve.begin() + static_cast<std::ptrdiff_t>(i);
      check_is(check_other(base, chain({kTwelve.begin(), end}), cuts), i, names[i], "");
    }
    cuts.rest_bytes = kTensorBytes;
    std::vector<std::string> longer = kTwelve;
    longer.insert(longer.end(), {"*", "exp", "+", "sin", "*"});
    check_is(check_other(base, chain(longer), cuts), 12, "", "aten::mul.Tensor");
  }
}

TEST_CASE("A value that a later segment would have kept is recomputed if that segment never runs",
          "[backend][cuts]") {
  bool other = false;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor u = x + 1;    // 0: not saved
    const at::Tensor v = u.exp();  // 1, in the group
    const at::Tensor t = v.sin();  // 2, in the group
    const at::Tensor c = t.cos();  // 3
    if (other) return c;
    return c * v.tan();  // 4, 5: tan's backward needs record 1
  };
  PlannedCuts cuts{{.positions = {1, 2, 3}, .groups = {{1, 3}}}};
  cuts.keep = least_list(fn, cuts);
  CHECK(std::none_of(cuts.keep->begin(), cuts.keep->end(),
                     [](const Cuts::Kept& kept) { return kept.record == 0; }));
  cuts.expected = expected_of(fn);
  other = true;
  check_is(check_other(fn, fn, cuts), 4, "aten::tan", "");
}

TEST_CASE(
    "An inner group that begins with the tape asks for nothing that its outer one has given up",
    "[backend][cuts]") {
  bool other = false;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor r = x + 2;    // 0: read only by the last segment, so the list has it
    const at::Tensor u = r + 1;    // 1: not saved
    const at::Tensor v = u.exp();  // 2, in the inner group
    const at::Tensor t = v.sin();  // 3, in the inner group
    const at::Tensor c = t.cos();  // 4
    if (other) return c.exp();     // in place of 5
    const at::Tensor d = v.tan();  // 5
    return c * d + r.atan();       // 6 to 8, in the last segment
  };
  PlannedCuts cuts{{.positions = {2, 3, 4, 6}, .groups = {{0, 4}, {1, 3}}}};
  cuts.keep = least_list(fn, cuts);
  const auto is_listed = [&](size_t record) {
    return std::any_of(cuts.keep->begin(), cuts.keep->end(),
                       [&](const Cuts::Kept& kept) { return kept.record == record; });
  };
  REQUIRE(is_listed(0));
  REQUIRE_FALSE(is_listed(1));
  cuts.expected = expected_of(fn);
  other = true;
  check_is(check_other(fn, fn, cuts), 5, "aten::tan", "aten::exp");
}

TEST_CASE("Early values that no list has may be read and written after the difference",
          "[backend][cuts]") {
  bool other = false;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor early = x + 1;         // 0
    at::Tensor sum = x + x.sin();           // 1, 2
    at::Tensor y = sum.cos().tanh().sin();  // 3 to 5
    if (other) {
      y = y * early.exp();  // 6: reads `early`, which is not saved
      sum = x * 2;
      at::Tensor written = early.clone();
      written.sigmoid_();
      y = (y.atan() * written).sin();
    }
    return y.tanh().cos();
  };
  const TensorFn writes = [&](const at::Tensor& x) {
    at::Tensor early = x + 1;             // 0
    at::Tensor y = x.sin().cos().tanh();  // 1 to 3
    if (other) early.mul_(3).sigmoid_();  // written in place, in a segment that is closed
    return (y * early).sin().exp() * early;
  };
  for (const TensorFn& each : {fn, writes}) {
    for (const std::vector<Cuts::Group>& groups :
         {std::vector<Cuts::Group>{}, {{0, 2}}, {{0, 3}, {1, 3}}}) {
      other = false;
      PlannedCuts cuts{{.positions = {1, 3, 5}, .groups = groups}};
      cuts.keep = least_list(each, cuts);
      cuts.expected = expected_of(each);
      for (const size_t rest_bytes : {size_t{0}, size_t{1} << 20}) {
        cuts.rest_bytes = rest_bytes;
        other = true;
        CHECK(check_other(each, each, cuts));
      }
    }
  }
}

TEST_CASE("A replay may differ from its forward in saved tensors alone", "[backend][cuts]") {
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
  bool frozen = false;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor a = x.sin() + 1;                    // 0, 1
    const at::Tensor b = a.mm(frozen ? w.detach() : w);  // 2, which saves a for w's gradient
    return b.tanh().mm(w).cos();                         // 3 to 5
  };
  for (const std::vector<Cuts::Group>& groups : {std::vector<Cuts::Group>{}, {{0, 2}}, {{0, 3}}}) {
    for (const bool was_frozen : {false, true}) {
      frozen = was_frozen;
      PlannedCuts cuts{{.positions = {2, 3, 4}, .groups = groups}};
      cuts.expected = expected_of(fn);
      cuts.keep = least_list(fn, cuts);
      frozen = !was_frozen;
      check_is(check_other(fn, fn, cuts, {w}), 2, "aten::mm", "aten::mm", /*in_slot=*/true);
    }
  }
}

TEST_CASE("A tensor may be saved in another segment than expected", "[backend][cuts]") {
  bool late = false;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor v = x + 1;  // 0
    at::Tensor y = late ? v : SavesInput::apply(v);
    const at::Tensor w = x.detach().cos();  // 1
    const at::Tensor z = x.detach().sin();  // 2
    if (late) y = SavesInput::apply(v);
    return y + w + z;
  };
  PlannedCuts cuts{{.positions = {2}, .keep = Kept{}}, expected_of(fn)};
  late = true;
  const auto difference = check_other(fn, fn, cuts);
  REQUIRE(difference.has_value());
  CHECK(difference->in_slot);
}

TEST_CASE("An op may make more than expected of what it is given", "[backend][cuts]") {
  int64_t size = 2;
  const TensorFn fn = [&](const at::Tensor& x) {
    return x * torch::split_copy(x.detach(), size)[0].sum();
  };
  const PlannedCuts cuts{{.keep = Kept{}}, expected_of(fn)};
  size = 1;
  check_is(check_other(fn, fn, cuts), 0, "aten::split_copy.Tensor", "aten::split_copy.Tensor");
}

TEST_CASE("The last op may save less than expected", "[backend][cuts]") {
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
  bool frozen = false;
  const TensorFn fn = [&](const at::Tensor& x) { return x.sin().mm(frozen ? w.detach() : w); };
  const PlannedCuts cuts{{.positions = {1}}, expected_of(fn)};
  frozen = true;
  check_is(check_other(fn, fn, cuts, {w}), 1, "aten::mm", "aten::mm", /*in_slot=*/true);
}

TEST_CASE("A saved tensor that was not expected is held, not made again", "[backend][cuts]") {
  bool other = false;
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor a = x.sin() + 1;         // 0, 1
    return a.mm(other ? w : w.detach()) + 1;  // 2, 3
  };
  PlannedCuts cuts{{.positions = {2}, .keep = least_list(fn, {.positions = {2}})}};
  REQUIRE(cuts.keep->empty());
  cuts.expected = expected_of(fn);
  other = true;
  const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
  CHECK(memory_report().bytes == kTensorBytes);  // a
  OpCounts counts;
  y.sum().backward();
  CHECK(counts["aten::sin"] == 0);
}

TEST_CASE("An unexpected saved tensor is kept instead of recomputed", "[backend][cuts]") {
  bool other = false;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor a = x.sin();       // 0
    return other ? a.tanh() : x.cos();  // 1, which nothing reads
  };
  PlannedCuts cuts{{.positions = {1}, .keep = Kept{}}, expected_of(fn)};
  other = true;
  check_is(check_other(fn, fn, cuts), 1, "aten::cos", "aten::tanh");
  const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
  CHECK(memory_report().bytes == kTensorBytes);  // the result of tanh
  OpCounts counts;
  y.sum().backward();
  CHECK(counts["aten::sin"] == 0);
  CHECK(counts["aten::tanh"] == 0);
}

TEST_CASE("The value before a write is kept, too, if it was saved unexpectedly",
          "[backend][cuts]") {
  bool other = false;
  const at::Tensor factor = torch::linspace(-1, 1, 32).view({4, 8}).clone().requires_grad_();
  const TensorFn fn = [&](const at::Tensor& x) {
    at::Tensor a = x + x.sin();                // 0, 1
    a.mul_(other ? factor : factor.detach());  // 2, which saves a copy of a for the factor
    return a + 1;
  };
  for (const std::vector<Cuts::Group>& groups : {std::vector<Cuts::Group>{}, {{0, 2}}}) {
    other = false;
    PlannedCuts cuts{{.positions = {2}, .groups = groups}};
    cuts.keep = least_list(fn, cuts);
    REQUIRE(cuts.keep->empty());
    cuts.expected = expected_of(fn);
    other = true;
    check_is(check_other(fn, fn, cuts, {factor}), 2, "aten::mul_.Tensor", "aten::mul_.Tensor",
             /*in_slot=*/true);
    const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
    OpCounts counts;
    y.sum().backward();
    CHECK(counts["aten::sin"] == 0);
  }
}

TEST_CASE("What only ops after a difference read is recomputed", "[backend][cuts]") {
  bool other = false;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor a = x.cos();              // 0
    const at::Tensor b = a.atan();             // 1
    const at::Tensor c = b.cos().cos();        // 2, which saves b; 3
    return other ? c.neg() + b : c.exp() + 1;  // 4, 5
  };
  const PlannedCuts cuts{{.positions = {1, 4}}, expected_of(fn), /*rest_bytes=*/0};
  other = true;
  check_is(check_other(fn, fn, cuts), 4, "aten::exp", "aten::neg");
  const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
  CHECK(memory_report().bytes == kTensorBytes);  // a
  OpCounts counts;
  y.sum().backward();
  CHECK(counts["aten::atan"] == 1);
}

TEST_CASE("After a difference, replays start from the values that the remaining segments read",
          "[backend][cuts]") {
  const TensorFn base = chain(kTwelve);
  const TensorFn other = chain({"exp", "sin", "sin", "sin", "sin", "sin", "sin"});
  const auto kept = [&](size_t rest_bytes) {
    const PlannedCuts cuts{{.positions = {3, 6}, .keep = Kept{}}, expected_of(base), rest_bytes};
    const at::Tensor y = checkpoint(with_cuts(cuts))(other)(step_input());
    return memory_report().bytes / kTensorBytes;
  };
  CHECK(kept(1 << 20) == 1);  // exp's result, which is saved unplanned and read by later ops
  CHECK(kept(3 * kTensorBytes) == 2);  // two segments of three ops
  CHECK(kept(0) == 3);                 // segments of two ops, which save as much as crosses
}

// The program holds the tensors that a segment's replay has to make, so they are alive here.
TEST_CASE("Saved tensors that the program holds do not keep the rest from being cut",
          "[backend][cuts]") {
  const TensorFn base = chain(kTwelve);
  const TensorFn other = [](const at::Tensor& x) {
    std::vector<at::Tensor> held{x.exp()};
    for (int i = 0; i < 6; ++i) {
      const at::Tensor alive = held.back() + 1;  // not saved
      held.push_back(alive.exp());
    }
    return held.back();
  };
  const PlannedCuts cuts{
      {.positions = {3, 6}, .keep = Kept{}}, expected_of(base), 4 * kTensorBytes};
  CHECK(check_other(base, other, cuts));
  const at::Tensor y = checkpoint(with_cuts(cuts))(other)(step_input());
  CHECK(memory_report().bytes == 3 * kTensorBytes);  // three segments of two adds and two exps
}

TEST_CASE("A rest of which more crosses than autograd saves is kept as autograd saves it",
          "[backend][cuts]") {
  constexpr size_t kWide = 16;
  constexpr size_t kLayers = 6;
  const TensorFn base = chain(kTwelve);
  const TensorFn other = [](const at::Tensor& x) {
    at::Tensor y = x.exp();
    for (size_t i = 0; i < kLayers; ++i) {
      const at::Tensor wide = y.repeat({kWide, 1}).mul(2).add(1).neg();  // not saved
      y = wide.view({kWide, 4, 8}).sum(0).sin();
    }
    return y;
  };
  for (const size_t rest_tensors : {size_t{1}, kWide, 2 * kWide, 3 * kWide, 9 * kWide}) {
    INFO("cut every " << rest_tensors);
    const PlannedCuts cuts{
        {.positions = {3, 6}, .keep = Kept{}}, expected_of(base), rest_tensors * kTensorBytes};
    CHECK(check_other(base, other, cuts));
    const at::Tensor y = checkpoint(with_cuts(cuts))(other)(step_input());
    CHECK(memory_report().bytes <= (1 + kLayers + 2 * kWide) * kTensorBytes);
  }
}

TEST_CASE("More memory than expected is a difference", "[backend][cuts]") {
  const TensorFn fn = chain(kTwelve);
  auto expected = std::make_shared<ExpectedTape>(*expected_of(fn));
  const auto check = [&](size_t record, size_t most_bytes) {
    expected->records[record].most_bytes = most_bytes;
    PlannedCuts cuts{{.positions = {3, 6}}, expected};
    cuts.keep = least_list(fn, {.positions = {3, 6}});
    const auto difference = check_other(fn, fn, cuts);
    expected->records[record].most_bytes = ExpectedTape::kAnyBytes;
    return difference;
  };
  CHECK_FALSE(check(5, 6 * kTensorBytes));
  const auto difference = check(5, 6 * kTensorBytes - 1);
  check_is(difference, 5, "aten::sin", "aten::sin");
  CHECK(difference->str() ==
        "expected 767 bytes of new memory or less up to record 5, aten::sin, got 768");
  CHECK(check(0, kTensorBytes - 1));
  CHECK(check(11, 12 * kTensorBytes - 1));
}

TEST_CASE("One segment with a list may differ", "[backend][cuts]") {
  const TensorFn base = chain(kTwelve);
  const PlannedCuts cuts{{.keep = Kept{}}, expected_of(base)};
  CHECK_FALSE(check_other(base, base, cuts));
  std::vector<std::string> ops = kTwelve;
  ops[5] = "exp";
  check_is(check_other(base, chain(ops), cuts), 5, "aten::sin", "aten::exp");
}

TEST_CASE("Ops that make no record are not compared", "[backend][cuts]") {
  bool other = false;
  double read = 0;
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    const at::Tensor s = y.detach().sum();
    const at::Tensor z = y.cos().exp();
    if (other) read = s.item<double>() + static_cast<double>(z.equal(y));
    const at::Tensor none = other ? x.detach().narrow(0, 0, 0).exp() : x;
    return z.sin() + (other ? 0 : 0);
  };
  PlannedCuts cuts{{.positions = {1, 2, 3}, .keep = least_list(fn, {.positions = {1, 2, 3}})}};
  cuts.expected = expected_of(fn);
  const Costs planned = costs_of(fn, cuts);
  other = true;
  cuts.differs = [](const TapeDifference& difference) { FAIL(difference.got); };
  CHECK(costs_of(fn, cuts) == planned);
  CHECK(read != 0);
}

TEST_CASE("Without comparison of ops, saved tensors are still compared", "[backend][cuts]") {
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
  auto nothing = std::make_shared<ExpectedTape>();
  nothing->any_ops = true;
  const PlannedCuts cuts{{.keep = Kept{}}, nothing};
  const auto plain = [](const at::Tensor& x) { return x + x.detach().sin().exp(); };
  std::vector<TapeDifference> told;
  PlannedCuts telling = cuts;
  telling.differs = [&](const TapeDifference& difference) { told.push_back(difference); };
  checkpoint(with_cuts(telling))(plain)(step_input()).sum().backward();
  CHECK(told.empty());
  const TensorFn saves = [&](const at::Tensor& x) { return (x + 1).mm(w).cos() + x; };
  check_is(check_other(saves, saves, cuts, {w}), 1, "aten::mm", "aten::mm", /*in_slot=*/true);
}

TEST_CASE("An expert may get no tokens", "[backend][cuts]") {
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
  double threshold = 0;
  const TensorFn fn = [&](const at::Tensor& x) {
    at::Tensor y = x.sin().mm(w);
    for (int expert = 0; expert < 2; ++expert) {
      const at::Tensor chosen = (x.detach().select(1, 0) * (expert * 2 - 1) > threshold).nonzero();
      const at::Tensor rows = chosen.squeeze(1);
      y = y.index_add(0, rows, torch::gelu(y.index_select(0, rows).mm(w)));
    }
    return y.cos() * x;
  };
  for (size_t cut = 2; cut < 12; cut += 3) {
    PlannedCuts cuts{{.positions = {cut, cut + 2, cut + 5}, .groups = {{0, 2}}}};
    threshold = -0.5;
    cuts.keep = least_list(fn, cuts);
    cuts.expected = expected_of(fn);
    for (const double other : {0.2, 2.0, -3.0}) {
      threshold = other;
      check_other(fn, fn, cuts, {w});
    }
  }
}

TEST_CASE("Policies and offloaded values go with their segments", "[backend][cuts]") {
  const auto saves = make_policy(PolicyTable().op("aten::sin", Policy::kSave));
  const TensorFn base = chain(kTwelve);
  std::vector<std::string> ops = kTwelve;
  ops[4] = "exp";
  PlannedCuts cuts = four_segments({{0, 2}});
  cuts.policies = {saves, nullptr, saves, saves};
  check_is(check_other(base, chain(ops), cuts), 4, "aten::atan", "aten::exp");
  cuts.expected = expected_of(base);
  PlannedCuts without = cuts;  // segments after the difference have no policies
  without.policies = {saves, nullptr, nullptr, nullptr};
  CHECK(costs_of(chain(ops), cuts) == costs_of(chain(ops), without));
  PlannedCuts listed = four_segments({{0, 2}});
  listed.expected = expected_of(base);
  listed.keep = every_value(base);
  for (Cuts::Kept& kept : *listed.keep) kept.policy = Policy::kOffload;
  CheckpointOptions options = with_cuts(listed);
  options.offload_store = host_memory_store();
  check_same(step(checkpoint(options)(chain(ops))), step(chain(ops)));
}

TEST_CASE("A function that throws after a difference leaves nothing open", "[backend][cuts]") {
  const TensorFn base = chain(kTwelve);
  const TensorFn throws = [](const at::Tensor& x) -> at::Tensor {
    const at::Tensor y = chain({"sin", "exp", "cos", "+", "sin", "tanh"})(x);
    throw std::runtime_error("thrown");
  };
  for (PlannedCuts& cuts : all_kinds(base)) {
    cuts.rest_bytes = kTensorBytes;
    CHECK_THROWS_AS(checkpoint(with_cuts(cuts))(throws)(step_input()), std::runtime_error);
    CHECK(memory_report().bytes == 0);
    CHECK(memory_report().regions.empty());
  }
}

TEST_CASE("A graph of a tape that differs may be kept", "[backend][cuts]") {
  const TensorFn base = chain(kTwelve);
  std::vector<std::string> ops = kTwelve;
  ops[4] = "exp";
  for (const PlannedCuts& cuts : all_kinds(base)) {
    const at::Tensor x = step_input();
    const at::Tensor y = checkpoint(with_cuts(cuts))(chain(ops))(x);
    y.sum().backward({}, /*retain_graph=*/true);
    const at::Tensor first = x.grad().clone();
    x.mutable_grad() = at::Tensor();
    y.sum().backward();
    CHECK(same_bits(x.grad(), first));
    CHECK(memory_report().regions.empty());
  }
}

namespace {

/// An op of a random program, which reads values from some steps earlier.
struct Step {
  int kind = 0;
  size_t a = 0;  // steps back to the values of the two operands
  size_t b = 0;
};

constexpr int kKinds = 14;

class Machine {
 public:
  Machine(const at::Tensor& x, const Tensors& weights, size_t frozen)
      : values_{x}, may_write_{false}, weights_(weights), frozen_(frozen) {}

  at::Tensor run(const std::vector<Step>& steps) {
    for (const Step& each : steps) run(each);
    return values_.back() * values_.front();  // saves something in any case
  }

 private:
  void run(const Step& step) {
    const size_t a = back(step.a);
    const size_t b = back(step.b);
    switch (step.kind) {
      case 0:
        return add(read(a).sin());
      case 1:
        return add(read(a).tanh());
      case 2:
        return add(read(a).mm(weight(step.b)));
      case 3:
        return add(read(a) * read(b));
      case 4:
        return add(values_[a] + values_[b], /*may_write=*/true);
      case 5:
        return add(torch::dropout(read(a), 0.3, true));
      case 6:
        return add(torch::layer_norm(read(a), {8}));
      case 7:
        return add(read(a).reshape({-1}).cos().view({4, 8}));
      case 8:
        return write(a, [](const at::Tensor& t) { t.mul_(0.5); });
      case 9:
        return write(a, [](const at::Tensor& t) { t.narrow(1, 2, 3).add_(1); });
      case 10:
        return write(a, [&](const at::Tensor& t) { t.add_(values_[b]); });
      case 11: {
        const auto halves = read(a).chunk(2, 1);
        return add(torch::cat({halves[1], halves[0].exp().sigmoid()}, 1));
      }
      case 12:
        return add(read(a).detach().sin(), /*may_write=*/true);
      default:
        return write(
            a, [](const at::Tensor& t) { t.sigmoid_(); }, /*saves=*/true);
    }
  }

  size_t back(size_t steps) const { return values_.size() - 1 - steps % values_.size(); }
  at::Tensor weight(size_t i) const {
    const size_t number = i % weights_.size();
    return number == frozen_ ? weights_[number].detach() : weights_[number];
  }

  /// Returns a value for an op that may save it.
  const at::Tensor& read(size_t i) {
    may_write_[i] = false;
    return values_[i];
  }

  void add(at::Tensor value, bool may_write = false) {
    values_.push_back(std::move(value));
    may_write_.push_back(may_write);
  }

  template <class F>
  void write(size_t i, F&& f, bool saves = false) {
    if (!may_write_[i]) {
      add(values_[i].clone(), true);
      i = values_.size() - 1;
    }
    f(values_[i]);
    may_write_[i] = !saves;
    if (i + 1 != values_.size()) add(values_[i] + 0.25, true);
  }

  Tensors values_;
  std::vector<bool> may_write_;  // per value: true while no op has saved it
  const Tensors& weights_;
  const size_t frozen_;
};

/// A random program, with random variants of it and cuts for it.
class RandomCase {
 public:
  explicit RandomCase(unsigned seed) : random_(seed) {
    for (int i = 0; i < 3; ++i)
      weights.push_back(
          (torch::arange(64, at::kFloat).view({8, 8}) * (0.01 * (i + 1)) - 0.3).requires_grad_());
    for (size_t i = 5 + pick(14); i > 0; --i) base.push_back(random_step());
  }

  size_t pick(size_t count) { return random_() % count; }

  TensorFn function(const std::vector<Step>& steps, size_t frozen = 99) const {
    return [this, steps, frozen](const at::Tensor& x) {
      return Machine(x, weights, frozen).run(steps);
    };
  }

  std::vector<Step> other_program() {
    std::vector<Step> other = base;
    const auto at = other.begin() + static_cast<std::ptrdiff_t>(pick(other.size()));
    switch (pick(5)) {
      case 0:
        other.insert(at, random_step());
        break;
      case 1:
        other.erase(at);
        break;
      case 2:
        *at = random_step();
        break;
      case 3:
        other.erase(at, other.end());
        break;
      default:
        for (size_t i = 1 + pick(4); i > 0; --i) other.push_back(random_step());
    }
    if (!other.empty() && pick(4) == 0) other[pick(other.size())] = random_step();
    return other;
  }

  PlannedCuts random_cuts() {
    PlannedCuts cuts;
    const TensorFn fn = function(base);
    const size_t records = tape_of(fn, {.keep = Kept{}}).size();
    for (size_t i = 1; i < records; ++i) {
      if (pick(3) == 0) cuts.positions.push_back(i);
    }
    add_groups(cuts, 0, cuts.segment_count());
    const size_t kind = cuts.positions.empty() ? 1 + pick(2) : pick(4);
    if (kind == 1) cuts.keep = every_value(fn);
    if (kind >= 2) cuts.keep = least_list(fn, cuts);
    constexpr size_t kRest[] = {0, 1, 3 * kTensorBytes, size_t{1} << 20};
    cuts.rest_bytes = kRest[pick(4)];
    cuts.expected = expected_of(fn);
    return cuts;
  }

  Tensors weights;
  std::vector<Step> base;

 private:
  Step random_step() {
    return {static_cast<int>(pick(kKinds)), pick(3) == 0 ? pick(12) : pick(2), pick(6)};
  }

  void add_groups(PlannedCuts& cuts, size_t begin, size_t end) {
    while (begin + 2 <= end) {
      const size_t size = 2 + pick(4);
      if (begin + size <= end && pick(3) != 0) {
        cuts.groups.push_back({begin, begin + size});
        if (size > 2) add_groups(cuts, begin + pick(2), begin + size - 1);
        begin += size;
      } else {
        ++begin;
      }
    }
  }

  std::mt19937 random_;
};

}  // namespace

TEST_CASE("Random programs with cuts of others are bitwise plain ones", "[backend][cuts]") {
  size_t different = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    RandomCase random(seed);
    const TensorFn base = random.function(random.base);
    const PlannedCuts cuts = random.random_cuts();
    CHECK_FALSE(check_other(base, base, cuts, random.weights));
    for (int i = 0; i < 4; ++i) {
      const size_t frozen = i == 3 ? random.pick(3) : 99;
      const auto program = i == 3 ? random.base : random.other_program();
      if (check_other(base, random.function(program, frozen), cuts, random.weights)) ++different;
    }
    CHECK(memory_report().regions.empty());
  }
  CHECK(different > 300);  // otherwise the programs are too much alike
}

}  // namespace remat
