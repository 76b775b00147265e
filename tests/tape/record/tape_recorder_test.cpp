// SPDX-License-Identifier: BSD-3-Clause

// A tape has records, values and slots of the ops of a function, and refuses what it cannot replay.
#include <remat/tape/tape.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/error_text.h"
#include "support/recorded_tape.h"
#include "support/same_bits.h"
#include "support/silence.h"

namespace remat {
namespace {

using Source = TapeValue::Source;
using Names = std::vector<std::string>;

std::string refused_by_tape(const TensorFn& fn) {
  return error_text([&] { RecordedTape recorded(fn); });
}

/// Returns the value and layout in the only slot.
TapeRef only_slot(const RecordedTape& recorded) {
  const auto& slots = recorded.tape().parts()[0].slots;
  REQUIRE(slots.size() == 1);
  return slots[0].ref;
}

}  // namespace

TEST_CASE("Views need no record", "[tape][record]") {
  const RecordedTape recorded([](const at::Tensor& x) {
    return x.t().t().view({2, 16}).narrow(1, 2, 3).select(0, 1).exp();
  });
  CHECK(recorded.ops() == Names{"aten::exp"});
  const TapeRef ref = recorded.tape().refs(recorded.tape().records()[0])[0];
  CHECK(recorded.tape().values()[ref.value].source == Source::kOutside);
}

TEST_CASE("An op that other ops make up has one record for each of them", "[tape][record]") {
  const RecordedTape recorded([](const at::Tensor& x) { return at::square(x).exp(); });
  CHECK(recorded.ops() == Names{"aten::pow.Tensor_Scalar", "aten::exp"});
}

TEST_CASE("Records that no slot needs at the end are dropped", "[tape][record]") {
  const RecordedTape recorded([](const at::Tensor& x) {
    const at::Tensor y = x.exp();
    return y.detach().sin().cos() + y;
  });
  CHECK(recorded.ops() == Names{"aten::exp"});
  CHECK(recorded.tape().arguments(recorded.tape().records()[0]).size() == 1);
}

TEST_CASE("A tensor from outside has one value until the function writes it", "[tape][record]") {
  const at::Tensor buffer = torch::ones({4, 8});
  const RecordedTape recorded([&](const at::Tensor& x) {
    const at::Tensor first = x * buffer;
    const at::Tensor second = first * buffer.view({32}).view({4, 8});
    buffer.add_(1);
    return second * buffer;
  });
  CHECK(recorded.count(Source::kOutside) == 2);
  CHECK(recorded.ops() == Names{"aten::mul.Tensor", "aten::mul.Tensor", "aten::add_.Scalar"});
  const Tape& tape = recorded.tape();
  const TapeRef first = tape.refs(tape.records()[0])[1];
  const TapeRef second = tape.refs(tape.records()[1])[1];
  CHECK(first.value == second.value);
  CHECK(first.layout == second.layout);
  CHECK(tape.writes(tape.records()[2])[0].before == first.value);
}

TEST_CASE("Slots refer to the value that was saved, before or after a write", "[tape][record]") {
  const RecordedTape saves_result([](const at::Tensor& x) { return (x * 2).exp_(); });
  const TapeRef result = only_slot(saves_result);
  const Tape& tape = saves_result.tape();
  CHECK(tape.maker(result.value) == "aten::exp_");
  CHECK(same_bits(saves_result.replay()[0], saves_result.y()));
  const RecordedTape saves_argument([](const at::Tensor& x) { return (x + 1).sin().mul_(2); });
  CHECK(saves_argument.tape().maker(only_slot(saves_argument).value) == "aten::add.Scalar");
}

TEST_CASE("Memory that the host fills is held", "[tape][record]") {
  const RecordedTape recorded([](const at::Tensor& x) {
    const at::Tensor numbers = at::empty({4, 1});  // torch.tensor([1, 2, 3, 4]) does this.
    for (int i = 0; i < 4; ++i) numbers.data_ptr<float>()[i] = static_cast<float>(i + 1);
    return (x * numbers).exp();
  });
  CHECK(recorded.count(Source::kHeld) == 1);
  CHECK(same_bits(recorded.replay().back(), recorded.y()));
}

TEST_CASE("A number is held once for ops near each other", "[tape][record]") {
  const auto number = [](double value) {
    at::Tensor tensor = at::scalar_tensor(value);
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  };
  const at::Tensor two = number(2);
  const at::Tensor two_again = number(2);
  const at::Tensor three = number(3);
  const RecordedTape recorded(
      [&](const at::Tensor& x) { return ((x * two + three) * two_again + three).exp(); });
  CHECK(recorded.count(Source::kHeld) == 2);
  CHECK(same_bits(recorded.replay().back(), recorded.y()));
}

TEST_CASE("Memory that an op makes uninitialised and another one fills has a record of each",
          "[tape][record]") {
  const RecordedTape filled(
      [](const at::Tensor& x) { return (x * at::empty_like(x.detach()).fill_(2)).exp(); });
  CHECK(filled.ops() ==
        Names{"aten::empty_like", "aten::fill_.Scalar", "aten::mul.Tensor", "aten::exp"});
}

TEST_CASE("The generator's state before an op is in the op's record", "[tape][record]") {
  const RecordedTape recorded([](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    return (y * at::rand_like(x)).exp();
  });
  std::vector<size_t> states;
  for (const TapeRecord& record : recorded.tape().records())
    states.push_back(recorded.tape().generators(record).size());
  CHECK(recorded.ops()[1] == "aten::rand_like");
  CHECK(states == std::vector<size_t>{0, 1, 0, 0});
  CheckpointOptions options{.name = "r"};
  options.preserve_rng = false;
  const RecordedTape without(
      [](const at::Tensor& x) { return (x * at::rand_like(x.detach())).sin(); }, options);
  CHECK(without.tape().generators(without.tape().records()[0]).empty());
}

TEST_CASE("The result of a SAVE call is a product, and its ops have no records", "[tape][record]") {
  const RecordedTape recorded([](const at::Tensor& x) {
    const at::Tensor kept = save("kept", [](const at::Tensor& t) { return t.sin().cos(); })(x);
    return kept.exp();
  });
  CHECK(recorded.count(Source::kProduct) == 1);
  CHECK(recorded.ops() == Names{"aten::exp"});
  CHECK(same_bits(recorded.replay().back(), recorded.y()));
}

TEST_CASE("Saved tensors are hashed until a replay of the same ops was right", "[tape][record]") {
  const TensorFn fn = [](const at::Tensor& x) { return x.sin().exp().erf(); };
  {
    const RecordedTape first(fn, {.name = "hashed until right"});
    CHECK(first.tape().has_hashes());
    CHECK(first.tape().op_hashes().size() == 3);
    CHECK(first.tape().parts()[0].slots.back().hash != 0);
    first.y().sum().backward();
  }
  const RecordedTape later(fn, {.name = "hashed until right"});
  CHECK_FALSE(later.tape().has_hashes());
  CHECK(later.tape().op_hashes().empty());
  CHECK(later.tape().parts()[0].slots.back().hash == 0);
}

TEST_CASE("A write that no op shows is held as the bytes that it left", "[tape][record]") {
  const RecordedTape recorded([](const at::Tensor& x) {
    const at::Tensor y = x.detach().sin();
    y.data_ptr<float>()[0] = 5;
    y.unsafeGetTensorImpl()->bump_version();  // A custom function's mark_dirty does so, too.
    return (x * y).exp();
  });
  CHECK(recorded.count(Source::kHeld) == 1);
  CHECK(same_bits(recorded.replay().back(), recorded.y()));
}

TEST_CASE("A tape has no record of what it cannot replay, and says why", "[tape][record]") {
  CHECK_THAT(refused_by_tape([](const at::Tensor& x) {
               at::Tensor y = x.detach().sin();
               y.resize_({64});
               return x.exp();
             }),
             ContainsSubstring("[checkpoint] region 'r': expected what a tape can replay, got op "
                               "aten::resize_: memory that changes its size"));
  CHECK_THAT(refused_by_tape([](const at::Tensor& x) { return x.to_sparse().to_dense().exp(); }),
             ContainsSubstring("a tensor that is not strided"));
  CHECK_THAT(refused_by_tape(
                 [](const at::Tensor& x) { return (x.sum() * at::empty({2000}).sum()).exp(); }),
             ContainsSubstring("more than 4,096 bytes that no op wrote, after empty()"));
}

TEST_CASE("A region that may call its function does so if there is no tape", "[tape][record]") {
  int calls = 0;
  const TensorFn fn = [&](const at::Tensor& x) {
    ++calls;
    return x.to_sparse().to_dense().exp();
  };
  const Silence silence;
  const at::Tensor x = step_input();
  const auto region = checkpoint({.name = "no tape", .replay = ReplayEngine::kAuto})(fn);
  const at::Tensor y = region(x);
  CHECK(region_tapes().empty());
  y.sum().backward();
  CHECK(calls == 2);
  REQUIRE(silence.texts().size() == 1);
  CHECK_THAT(silence.texts()[0], ContainsSubstring("op aten::_to_sparse: a tensor that is not"));
}

TEST_CASE("Values that cross a cut belong to the segment that makes them", "[tape][record]") {
  CheckpointOptions options{.name = "r"};
  options.cuts.positions = {2};
  const RecordedTape recorded([](const at::Tensor& x) { return x.sin().exp().tanh().sigmoid(); },
                              options);
  const auto& parts = recorded.tape().parts();
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].begin == 0);
  CHECK(parts[0].end == 2);
  CHECK(parts[0].first_value == 0);
  CHECK(parts[0].end_value == 3);
  CHECK(parts[1].begin == 2);
  CHECK(parts[1].end == 4);
  CHECK(parts[1].first_value == 3);
  CHECK(parts[0].slots.size() == 2);
  CHECK(parts[1].slots.size() == 2);
}

}  // namespace remat
