// SPDX-License-Identifier: BSD-3-Clause

// A unit's replays start from the values that its live slots need, and give up the others.
#include <remat/tape/unit_inputs.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "support/recorded_tape.h"

namespace remat {
namespace {

using CutValues3 = std::map<uint32_t, std::shared_ptr<const CutValue>>;

std::shared_ptr<const CutValue> kept_input(uint32_t number) {
  return std::make_shared<const CutValue>(number, CallProduct(0, torch::ones({1})));
}

/// Two chains that meet at the end: x -> sin -> exp and x -> cos -> tanh.
struct TwoChains {
  RecordedTape recorded{[](const at::Tensor& x) { return x.sin().exp() + x.cos().tanh(); }};
  TapePart part = recorded.tape().parts()[0];
  std::vector<bool> needed = std::vector<bool>(recorded.tape().values().size());

  TwoChains() { part.end = static_cast<uint32_t>(recorded.tape().records().size()); }

  UnitInputs::Found find(const CutValues3& given) {
    return UnitInputs::find(
        recorded.tape(), part, recorded.region(),
        [&](uint32_t value) {
          const auto found = given.find(value);
          return found == given.end() ? nullptr : found->second;
        },
        needed);
  }
};

}  // namespace

TEST_CASE("The search for inputs stops at the values that are given", "[tape][run]") {
  // %0 = x, %1 = sin, %2 = exp, %3 = cos, %4 = tanh.
  TwoChains chains;
  const UnitInputs::Found found = chains.find({{1, kept_input(1)}, {3, kept_input(3)}});
  REQUIRE(found.values.size() == 2);
  CHECK(found.missing.empty());
  CHECK(chains.needed[1]);
  CHECK(chains.needed[2]);
}

TEST_CASE("Each slot knows the inputs that it is made from", "[tape][run]") {
  TwoChains chains;
  const auto sin = kept_input(1);
  const auto cos = kept_input(3);
  const UnitInputs::Found found = chains.find({{1, sin}, {3, cos}});
  const auto& slots = chains.part.slots;
  REQUIRE(found.of_slot.size() == slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    std::vector<uint32_t> numbers;
    for (const uint32_t position : found.of_slot[i])
      numbers.push_back(found.values[position]->value());
    INFO("slot " << i);
    const uint32_t value = slots[i].ref.value;
    if (value == 0) CHECK(numbers.empty());
    if (value == 2) CHECK(numbers == std::vector<uint32_t>{1});
    if (value == 4) CHECK(numbers == std::vector<uint32_t>{3});
  }
}

TEST_CASE("A slot needs the inputs of all that it is made from", "[tape][run]") {
  const RecordedTape recorded([](const at::Tensor& x) {
    const at::Tensor sin = x.detach().sin();
    const at::Tensor product = x * sin;
    return (product * x.detach().cos()).exp();
  });
  // %0 = x, %1 = sin, %2 = x * sin, %3 = cos.
  REQUIRE(recorded.ops()[2] == "aten::cos");
  TapePart part = recorded.tape().parts()[0];
  part.end = static_cast<uint32_t>(recorded.tape().records().size());
  std::vector<bool> needed(recorded.tape().values().size());
  const auto sin = kept_input(1);
  const auto cos = kept_input(3);
  const UnitInputs::Found found = UnitInputs::find(
      recorded.tape(), part, recorded.region(),
      [&](uint32_t value) { return value == 1   ? sin
                                   : value == 3 ? cos
                                                : nullptr; }, needed);
  CHECK(found.of_slot.back().size() == 2);
}

TEST_CASE("A value that another unit makes and nobody gives is missing", "[tape][run]") {
  TwoChains chains;
  chains.part.begin = 1;  // Without sin.
  const UnitInputs::Found found = chains.find({});
  CHECK(found.missing == std::vector<uint32_t>{1});
}

TEST_CASE("A slot that has died needs nothing", "[tape][run]") {
  at::Tensor exp;
  const RecordedTape recorded([&](const at::Tensor& x) {
    exp = x.exp();
    return x.sin().tanh();
  });
  TapePart part = recorded.tape().parts()[0];
  part.end = static_cast<uint32_t>(recorded.tape().records().size());
  const auto needs_exp = [&] {
    std::vector<bool> needed(recorded.tape().values().size());
    const auto never = [](uint32_t) { return std::shared_ptr<const CutValue>(); };
    UnitInputs::find(recorded.tape(), part, recorded.region(), never, needed);
    return static_cast<bool>(needed[1]);  // The result of exp.
  };
  CHECK(needs_exp());
  exp.reset();
  CHECK_FALSE(needs_exp());
}

TEST_CASE("An input is given up with the last live slot that needs it", "[tape][run]") {
  TwoChains chains;
  UnitInputs inputs;
  std::weak_ptr<const CutValue> sin;
  std::weak_ptr<const CutValue> cos;
  {
    const auto first = kept_input(1);
    const auto second = kept_input(3);
    sin = first;
    cos = second;
    inputs.set(chains.find({{1, first}, {3, second}}), chains.recorded.region());
  }
  CHECK(inputs.held().size() == 2);
  const auto& slots = chains.part.slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].ref.value == 2) inputs.release(i);
  }
  CHECK(sin.expired());
  CHECK_FALSE(cos.expired());
  for (size_t i = 0; i < slots.size(); ++i) inputs.release(i);
  CHECK(cos.expired());
  CHECK(inputs.held().empty());
  inputs.release(100);
}

TEST_CASE("Inputs that only dead slots need are not held", "[tape][run]") {
  TwoChains chains;
  UnitInputs inputs;
  UnitInputs::Found found = chains.find({{1, kept_input(1)}});
  for (auto& positions : found.of_slot) positions.clear();
  inputs.set(std::move(found), chains.recorded.region());
  CHECK(inputs.held().empty());
}

}  // namespace remat
