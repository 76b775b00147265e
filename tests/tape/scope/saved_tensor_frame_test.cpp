// SPDX-License-Identifier: BSD-3-Clause

// The stack of scopes: order, threads, forked children, and scopes hidden from user callbacks.
#include <remat/tape/saved_tensor_frame.h>

#include "support/catch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

namespace {

using remat::SavedTensorFrame;

class TestFrame final : public SavedTensorFrame {
 public:
  explicit TestFrame(bool replay = false)
      : SavedTensorFrame(replay ? Phase::kReplay : Phase::kForward) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override { return nullptr; }
  void before_accumulate(const remat::EdgeList& roots) override {
    ++accumulations;
    SavedTensorFrame::before_accumulate(roots);
  }
  int accumulations = 0;
};

TEST_CASE("Scopes nest: the innermost is current, and each knows the one around it",
          "[tape][saved_tensor_frame]") {
  CHECK(SavedTensorFrame::current() == nullptr);
  {
    TestFrame outer;
    CHECK(outer.previous() == nullptr);
    {
      TestFrame inner;
      CHECK(SavedTensorFrame::current() == &inner);
      CHECK(inner.previous() == &outer);
    }
    CHECK(SavedTensorFrame::current() == &outer);
  }
  CHECK(SavedTensorFrame::current() == nullptr);
}

TEST_CASE("A scope opened in a replay belongs to it; one around it does not",
          "[tape][saved_tensor_frame]") {
  const TestFrame forward;
  CHECK_FALSE(remat::is_recomputing());
  {
    const TestFrame replay(/*replay=*/true);
    CHECK(remat::is_recomputing());
    const TestFrame inner;
    CHECK(inner.in_replay());
    CHECK(remat::is_recomputing());
  }
  CHECK_FALSE(forward.in_replay());
  CHECK_FALSE(remat::is_recomputing());
}

TEST_CASE("A backward that accumulates is told to every scope around it",
          "[tape][saved_tensor_frame]") {
  TestFrame outer;
  TestFrame inner;
  SavedTensorFrame::current()->before_accumulate({});
  CHECK(inner.accumulations == 1);
  CHECK(outer.accumulations == 1);
}

TEST_CASE("Suspended scopes are hidden, also from scopes opened meanwhile, and come back",
          "[tape][saved_tensor_frame]") {
  const TestFrame replay(/*replay=*/true);
  {
    const remat::SuspendFrames suspend;
    CHECK(SavedTensorFrame::current() == nullptr);
    CHECK_FALSE(remat::is_recomputing());
    const TestFrame inside;
    CHECK(inside.previous() == nullptr);
    CHECK_FALSE(inside.in_replay());
  }
  CHECK(SavedTensorFrame::current() == &replay);
}

TEST_CASE("A new thread has no scope", "[tape][saved_tensor_frame]") {
  const TestFrame frame;
  SavedTensorFrame* seen = nullptr;
  std::thread([&seen] { seen = SavedTensorFrame::current(); }).join();
  CHECK(seen == nullptr);
  CHECK(SavedTensorFrame::current() == &frame);
}

// Exit status of a forked child that runs `fn`; 0 is success.
template <class Fn>
int in_child(Fn fn) {
  const pid_t child = fork();
  if (child == 0) _exit(fn() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST_CASE("A forked child has no scope, may open its own, and may leave its parent's",
          "[tape][saved_tensor_frame]") {
  auto outer = std::make_unique<TestFrame>();
  auto inner = std::make_unique<TestFrame>(/*replay=*/true);
  const auto child = [&] {
    if (SavedTensorFrame::current() || remat::is_recomputing()) return false;
    {
      const TestFrame own;
      if (SavedTensorFrame::current() != &own || own.previous()) return false;
    }
    inner.reset();
    outer.reset();
    return SavedTensorFrame::current() == nullptr;
  };
  CHECK(in_child(child) == 0);
  CHECK(SavedTensorFrame::current() == inner.get());
  inner.reset();
  outer.reset();
}

}  // namespace
