// SPDX-License-Identifier: BSD-3-Clause

// The first difference between a tape and the tape that its cuts were made for is found and named.
#include <remat/tape/tape_comparison.h>

#include "support/catch.h"

#include <remat/engine/planned_cuts.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/recorded_tape.h"

namespace remat {
namespace {

/// Returns the expected tape of a function with the same ops.
ExpectedTape expected_of(const Tape& tape) {
  ExpectedTape expected;
  for (const TapeRecord& record : tape.records()) {
    std::vector<uint32_t> reads;
    for (const TapeRef& ref : tape.refs(record)) {
      if (ref.defined() && std::find(reads.begin(), reads.end(), ref.value) == reads.end())
        reads.push_back(ref.value);
    }
    std::vector<uint32_t> results;
    for (const TapeOutput& output : tape.outputs(record)) results.push_back(output.ref.value);
    std::vector<std::pair<uint32_t, uint32_t>> writes;
    for (const TapeWrite& write : tape.writes(record))
      writes.emplace_back(write.before, write.after);
    expected.records.push_back({.op = record.op->name(),
                                .reads = ExpectedTape::hash_reads(record.op->name(), reads),
                                .makes = ExpectedTape::hash_makes(results, writes)});
  }
  return expected;
}

at::Tensor sin_exp_tanh(const at::Tensor& x) {
  const at::Tensor sin = x.sin();
  return (sin * x.exp()).tanh();
}

at::Tensor sin_cos_tanh(const at::Tensor& x) {
  const at::Tensor sin = x.sin();
  return (sin * x.cos()).tanh();
}

/// The expected tape of sin_exp_tanh(), with slots of sin, exp, mul (two) and tanh.
ExpectedTape expected_tape() {
  ExpectedTape expected = expected_of(RecordedTape(&sin_exp_tanh).tape());
  expected.slots = {{.record = 0, .value = ExpectedTape::kNoValue},
                    {.record = 1, .value = 2},
                    {.record = 2, .value = 2},
                    {.record = 2, .value = 1},
                    {.record = 3, .value = 4}};
  return expected;
}

/// The difference that a forward of `fn` reports, with a cut before record 2.
std::optional<TapeDifference> difference(const TensorFn& fn, ExpectedTape expected) {
  std::optional<TapeDifference> found;
  const auto cuts = std::make_shared<PlannedCuts>(PlannedCuts{{.positions = {2}}});
  cuts->expected = std::make_shared<const ExpectedTape>(std::move(expected));
  cuts->differs = [&](const TapeDifference& got) { found = got; };
  CheckpointOptions options{.name = "r"};
  options.plan = cuts;
  const RecordedTape recorded(fn, options);
  return found;
}

}  // namespace

TEST_CASE("A tape of the same ops and slots does not differ", "[tape][cut]") {
  const auto found = difference(&sin_exp_tanh, expected_tape());
  INFO((found ? found->str() : ""));
  CHECK_FALSE(found);
}

TEST_CASE("Another op, other reads and another result differ at their record", "[tape][cut]") {
  const auto record_of = [](const TensorFn& fn) {
    const auto found = difference(fn, expected_tape());
    REQUIRE(found);
    return found->record;
  };
  CHECK(record_of(&sin_cos_tanh) == 1);
  CHECK(record_of([](const at::Tensor& x) {
          const at::Tensor sin = x.sin();
          return (sin * sin.exp()).tanh();
        }) == 1);
  CHECK(record_of([](const at::Tensor& x) {
          const at::Tensor sin = x.sin();
          const at::Tensor exp = x.exp();
          return sin.mul_(exp).tanh();
        }) == 2);
}

TEST_CASE("A difference names the op that was expected", "[tape][cut]") {
  const auto found = difference(&sin_cos_tanh, expected_tape());
  REQUIRE(found);
  CHECK(found->expected == "aten::exp");
  CHECK(found->got == "aten::cos");
}

TEST_CASE("A slot that was not expected differs, and so does a missing one", "[tape][cut]") {
  ExpectedTape expected = expected_tape();
  expected.slots[1].value = 1;
  const auto other = difference(&sin_exp_tanh, expected);
  REQUIRE(other);
  CHECK(other->in_slot);
  CHECK(other->slots == 1);
  REQUIRE(other->got_slot);
  CHECK(other->got_slot->value == 2);
  expected = expected_tape();
  expected.slots.push_back({.record = 3, .value = 4});
  const auto missing = difference(&sin_exp_tanh, expected);
  REQUIRE(missing);
  CHECK(missing->in_slot);
  CHECK_FALSE(missing->got_slot);
}

TEST_CASE("More memory than planned is a difference", "[tape][cut]") {
  ExpectedTape expected = expected_tape();
  expected.records[1].most_bytes = 255;  // The results of sin and exp take 256.
  const auto found = difference(&sin_exp_tanh, expected);
  REQUIRE(found);
  CHECK(found->record == 1);
  CHECK(found->most_bytes == 255);
  CHECK(found->got_bytes == 256);
}

TEST_CASE("Only slots differ if any ops are expected", "[tape][cut]") {
  ExpectedTape expected = expected_tape();
  expected.any_ops = true;
  const TensorFn with_sigmoid = [](const at::Tensor& x) {
    const at::Tensor sin = x.sin();
    return (sin * x.exp()).sigmoid();
  };
  CHECK_FALSE(difference(with_sigmoid, expected));
  expected.any_ops = false;
  CHECK(difference(with_sigmoid, expected));
}

TEST_CASE("Values have the numbers that they have on a tape without cuts", "[tape][cut]") {
  const RecordedTape recorded(&sin_exp_tanh);
  TapeComparison comparison(recorded.tape(), std::make_shared<const ExpectedTape>(expected_tape()),
                            {});
  const auto number = [&](uint32_t value) {
    return comparison.value_of_slot({.value = value, .layout = 0});
  };
  CHECK(number(0) == ExpectedTape::kNoValue);  // Value 0 comes from outside.
  CHECK(number(4) == 4);
  CHECK(comparison.value_of_slot({}) == ExpectedTape::kNoValue);
  comparison.add_memory(/*value=*/2, /*original=*/1);
  CHECK(number(1) == 1);
  CHECK(number(2) == 1);
  CHECK(number(4) == 3);
}

TEST_CASE("The function's end is expected after all records and slots", "[tape][cut]") {
  const RecordedTape recorded(&sin_exp_tanh);
  const auto comparison = [&](const ExpectedTape& expected) {
    return TapeComparison(recorded.tape(), std::make_shared<const ExpectedTape>(expected), {});
  };
  ExpectedTape expected = expected_tape();
  CHECK(comparison(expected).is_end_expected(5));
  CHECK_FALSE(comparison(expected).is_end_expected(4));
  CHECK(comparison(expected).other_end(4).in_slot);
  expected.records.push_back({.op = "aten::neg"});
  CHECK_FALSE(comparison(expected).is_end_expected(5));
  const TapeDifference end = comparison(expected).other_end(5);
  CHECK(end.record == 4);
  CHECK(end.expected == "aten::neg");
  CHECK(end.got.empty());
  CHECK_FALSE(end.in_slot);
}

}  // namespace remat
