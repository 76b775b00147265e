// SPDX-License-Identifier: BSD-3-Clause

// A replay of a tape makes the forward's values on new memory, and only those that are wanted.
#include "tape/run/tape_run.h"

#include "support/catch.h"

#include <remat/engine/replay_mismatch.h>
#include <remat/tape/cut_value.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/cut_step.h"
#include "support/error_text.h"
#include "support/recorded_tape.h"
#include "support/same_bits.h"

namespace remat {
namespace {

std::shared_ptr<const CutValue> given_value(uint32_t number, const at::Tensor& tensor) {
  CallProduct kept(0, tensor);
  kept.keep(tensor, {}, 0);
  return std::make_shared<const CutValue>(number, std::move(kept));
}

/// A tape whose values are not compared with the forward's, because a replay of an equal tape was
/// right before.
RecordedTape trusted_tape(const TensorFn& fn, const std::string& name) {
  RecordedTape(fn, {.name = name}).replay();
  return RecordedTape(fn, {.name = name});
}

ReplayedSlots replay_with(const RecordedTape& recorded, TapeRun::Inputs inputs) {
  ReplayedSlots slots(recorded.region().slots().size());
  recorded.replayer().replay_part(recorded.region(), recorded.region(), 0, inputs, slots);
  return slots;
}

}  // namespace

TEST_CASE("A replay gives the slots the forward's values on new memory", "[tape][run]") {
  const RecordedTape recorded([](const at::Tensor& x) { return x.sin().exp(); });
  const ReplayedSlots slots = recorded.replay();
  REQUIRE(slots.size() == 2);
  CHECK(same_bits(slots[0], recorded.x()));
  CHECK(same_bits(slots[1], recorded.y()));
  CHECK_FALSE(slots[1].storage().is_alias_of(recorded.y().storage()));
  CHECK_FALSE(slots[1].requires_grad());
}

TEST_CASE("A replay runs no record that the live slots do not need", "[tape][run]") {
  at::Tensor exp;
  RecordedTape recorded([&](const at::Tensor& x) {
    exp = x.exp();
    return x.sin() + x.cos().tanh();
  });
  OpCounts ops;
  recorded.replay();
  CHECK(ops["aten::exp"] == 1);
  exp.reset();  // Frees the node that saved the result.
  const ReplayedSlots slots = recorded.replay();
  CHECK(ops["aten::exp"] == 1);
  CHECK(ops["aten::tanh"] == 2);
  CHECK_FALSE(slots[0].defined());
}

TEST_CASE("A replay does not write what the forward wrote", "[tape][run]") {
  const at::Tensor buffer = torch::ones({4, 8});
  const RecordedTape recorded([&](const at::Tensor& x) {
    buffer.add_(x.detach());
    return (x * buffer).exp();
  });
  const at::Tensor after = buffer.clone();
  const ReplayedSlots slots = recorded.replay();
  CHECK(same_bits(buffer, after));
  CHECK(same_bits(slots.back(), recorded.y()));
  buffer.zero_();
  CHECK(same_bits(recorded.replay().back(), recorded.y()));
}

TEST_CASE("A write leaves the old value to the slot that wants it", "[tape][run]") {
  at::Tensor before;
  at::Tensor after;
  const RecordedTape recorded([&](const at::Tensor& x) {
    const at::Tensor y = x.detach().sin();
    const at::Tensor product = x * y;  // Saves `y`.
    before = y.clone();
    y.add_(1);
    after = y.exp();
    return product * after;  // Saves `after`.
  });
  const ReplayedSlots slots = recorded.replay();
  REQUIRE(slots.size() == 2);
  CHECK(same_bits(slots[0], before));
  CHECK(same_bits(slots[1], after));
}

TEST_CASE("A replay draws the forward's numbers, and the stream goes on as it was", "[tape][run]") {
  torch::manual_seed(3);
  const RecordedTape recorded([](const at::Tensor& x) { return (x * at::rand_like(x)).exp(); });
  const at::Tensor next = at::rand({2});
  torch::manual_seed(4);
  const at::Tensor expected = at::rand({2});
  torch::manual_seed(4);
  CHECK(same_bits(recorded.replay().back(), recorded.y()));
  CHECK(same_bits(at::rand({2}), expected));
  CHECK_FALSE(same_bits(next, expected));
}

TEST_CASE("A replay starts from given values and does not make them", "[tape][run]") {
  const RecordedTape recorded = trusted_tape(
      [](const at::Tensor& x) { return x.sin().exp().tanh(); }, "tape_run_test, given");
  const at::Tensor other = torch::full({4, 8}, 0.5F);
  OpCounts ops;
  const auto given = given_value(/*number=*/2, other);  // The result of exp.
  const ReplayedSlots slots = replay_with(recorded, {given});
  CHECK(ops["aten::sin"] == 0);
  CHECK(ops["aten::exp"] == 0);
  CHECK(same_bits(slots[1], other));
  CHECK(same_bits(slots[2], other.tanh()));
  CHECK(same_bits(slots[0], recorded.x()));
}

TEST_CASE("A given value is not written", "[tape][run]") {
  const RecordedTape recorded = trusted_tape(
      [](const at::Tensor& x) { return x.sin().exp().mul_(2).tanh(); }, "tape_run_test, written");
  const at::Tensor other = torch::full({4, 8}, 0.5F);
  const auto given = given_value(/*number=*/1, other);
  const ReplayedSlots slots = replay_with(recorded, {given});
  CHECK(same_bits(other, torch::full({4, 8}, 0.5F)));
  CHECK(same_bits(slots.back(), (other.exp() * 2).tanh()));
}

TEST_CASE("A value that differs from the forward's raises at its slot", "[tape][run]") {
  float* memory = nullptr;
  const at::Tensor factor = torch::ones({4, 8});
  const RecordedTape recorded(
      [&](const at::Tensor& x) {
        at::Tensor y = x.detach() * factor;
        memory = y.data_ptr<float>();
        memory[0] += 1;  // The host writes, which no tape sees.
        return (x * y).sin();
      },
      {.name = "tape_run_test, differs"});
  REQUIRE(recorded.tape().has_hashes());
  CHECK_THROWS_AS(recorded.replay(), ReplayMismatch);
  CHECK_THAT(error_text([&] { recorded.replay(); }),
             ContainsSubstring("expected the values that the forward saved"));
}

TEST_CASE("An argument that was written after the forward raises", "[tape][run]") {
  const RecordedTape recorded([](const at::Tensor& x) { return x.sin().exp(); },
                              step_input().detach().clone().requires_grad_());
  {
    const torch::NoGradGuard off;
    recorded.x().add_(1);
  }
  CHECK_THAT(error_text([&] { recorded.replay(); }),
             ContainsSubstring("has been modified by an inplace operation"));
}

TEST_CASE("Memory from outside that was exchanged raises", "[tape][run]") {
  const at::Tensor weight = torch::ones({4, 8}).requires_grad_();
  const RecordedTape recorded([&](const at::Tensor& x) { return (x * weight).exp(); });
  weight.set_data(torch::zeros({4, 8}));
  CHECK_THAT(error_text([&] { recorded.replay(); }), ContainsSubstring("got other memory"));
}

TEST_CASE("An op is replayed under the grad mode of its call", "[tape][run]") {
  const RecordedTape recorded([](const at::Tensor& x) {
    at::Tensor y;
    {
      const torch::NoGradGuard off;
      y = x.sin();
    }
    return (x * y).exp();
  });
  std::vector<bool> modes;
  for (const TapeRecord& record : recorded.tape().records()) modes.push_back(record.grad_mode);
  CHECK(modes == std::vector<bool>{false, true, true});
}

TEST_CASE("A tape lets its function go", "[tape][run]") {
  auto captured = std::make_shared<int>(1);
  const std::weak_ptr<int> function_lives = captured;
  const RecordedTape recorded([captured](const at::Tensor& x) { return x.sin().exp(); });
  captured.reset();
  CHECK(function_lives.expired());
  CHECK(same_bits(recorded.replay().back(), recorded.y()));
}

TEST_CASE("A list of values has those of the part and of others", "[tape][run]") {
  ByValue<int> by_value(/*first=*/10, /*end=*/12);
  by_value[10] = 1;
  by_value[11] = 2;
  by_value[3] = 4;
  const ByValue<int>& read = by_value;
  CHECK(read[10] == 1);
  CHECK(read[11] == 2);
  CHECK(read[3] == 4);
  CHECK(read[12] == 0);
  int sum = 0;
  by_value.for_each([&](uint32_t, int value) { sum += value; });
  CHECK(sum == 7);
}

}  // namespace remat
