// SPDX-License-Identifier: BSD-3-Clause

// Tensors that autograd saves for a custom function after a SAVE call belong to the call.
#include "forward/expected_saves.h"

#include "support/catch.h"

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

namespace remat {
namespace {

/// A call that has ended, for which autograd is still expected to save `tensors`.
class EndedCall {
 public:
  explicit EndedCall(std::vector<at::Tensor> tensors, SavingState saving = {}) {
    saves_.expect({"a", "b", "c"}, tensors, saving);
    SavedCall running;
    running.index = 7;
    saves_.end_call(running);
  }

  ExpectedSaves& saves() { return saves_; }
  bool takes(const at::Tensor& tensor) { return saves_.call_that_saves(tensor) != nullptr; }
  /// The name of `tensor`, which autograd saves for the call; empty if it saves it for other code.
  std::string name_of(const at::Tensor& tensor) {
    SavedCall* const call = saves_.call_that_saves(tensor);
    return call ? saves_.next_name(*call) : std::string();
  }

 private:
  ExpectedSaves saves_;
};

/// Returns a function that says that autograd is in the state `now`.
SavingState in_state(const Saving& now) {
  return [now] { return now; };
}

}  // namespace

TEST_CASE("Saved tensors get the names of the call in order", "[forward]") {
  const at::Tensor first = torch::ones({2});
  const at::Tensor second = torch::ones({3});
  EndedCall call({first, second});
  CHECK(call.name_of(first) == "a");
  CHECK(call.name_of(second.view({3, 1})) == "b");
  CHECK(call.name_of(second).empty());
}

TEST_CASE("Another tensor than the next is saved by other code", "[forward]") {
  const at::Tensor first = torch::ones({2});
  const at::Tensor second = torch::ones({3});
  EndedCall call({first, second});
  CHECK_FALSE(call.takes(second));
  CHECK(call.saves().empty());
  CHECK_FALSE(call.takes(first));
}

TEST_CASE("The next node after the call ends what is expected", "[forward]") {
  const at::Tensor saved = torch::ones({2});
  EndedCall call({saved});
  CHECK(call.takes(saved));
  torch::ones({2}).requires_grad_().exp();
  CHECK_FALSE(call.takes(saved));
  CHECK(call.saves().empty());
}

TEST_CASE("Undefined tensors are not saved, and keep their names", "[forward]") {
  const at::Tensor saved = torch::ones({2});
  EndedCall call({at::Tensor(), saved});
  CHECK(call.name_of(saved) == "b");
}

TEST_CASE("Autograd's own position counts where it is known", "[forward]") {
  const at::Tensor first = torch::ones({2});
  const at::Tensor second = torch::ones({3});
  const SavingState second_of_two =
      in_state({.state = Saving::State::kNow, .position = 1, .count = 2});
  CHECK_FALSE(EndedCall({first, second}, second_of_two).takes(first));
  CHECK(EndedCall({first, second}, second_of_two).name_of(second) == "b");
  EndedCall of_other_run({first, second},
                         in_state({.state = Saving::State::kNow, .position = 1, .count = 3}));
  CHECK_FALSE(of_other_run.takes(second));
}

TEST_CASE("What is still to come stays expected", "[forward]") {
  const auto stays = [](Saving::State state, bool by_op) {
    EndedCall call({torch::ones({2})}, in_state({.state = state}));
    call.saves().end(by_op);
    return !call.saves().empty();
  };
  CHECK(stays(Saving::State::kNotYet, false));
  CHECK(stays(Saving::State::kMaybe, true));
  CHECK_FALSE(stays(Saving::State::kMaybe, false));
  CHECK_FALSE(stays(Saving::State::kDone, true));
  CHECK_FALSE(stays(Saving::State::kNow, true));
}

TEST_CASE("A call that expects nothing, or throws, leaves nothing", "[forward]") {
  ExpectedSaves saves;
  SavedCall running;
  saves.expect({}, {}, {});
  saves.end_call(running);
  CHECK(saves.empty());
  saves.expect({"a"}, {torch::ones({2})}, {});
  saves.abandon_call();
  saves.end_call(running);
  CHECK(saves.empty());
}

TEST_CASE("An argument that was written after the call is noticed", "[forward]") {
  const at::Tensor saved = torch::ones({2});
  EndedCall call({saved});
  SavedCall* const taken = call.saves().call_that_saves(saved);
  REQUIRE(taken);
  CHECK(taken->index == 7);
  CHECK_FALSE(call.saves().is_written(*taken));
  saved.add_(1);
  CHECK(call.saves().is_written(*taken));
}

TEST_CASE("Code of a pack hook saves nothing for the call, and its failure ends the call",
          "[forward]") {
  const at::Tensor saved = torch::ones({2});
  const bool fails = GENERATE(false, true);
  // The lookup by the hook's own code fails, but does not end the expectations.
  EndedCall call({saved}, in_state({.state = Saving::State::kNow, .position = 0, .count = 1}));
  SavedCall* const taken = call.saves().call_that_saves(saved);
  REQUIRE(taken);
  call.saves().begin_pack(*taken);
  CHECK_FALSE(call.takes(saved));
  CHECK_FALSE(call.saves().empty());
  call.saves().end_pack(/*call=*/7, fails);
  CHECK(call.saves().empty() == fails);
  CHECK(call.takes(saved) != fails);
}

}  // namespace remat
