// SPDX-License-Identifier: BSD-3-Clause

// The stack of scopes: order, threads, forked children, and scopes hidden from user callbacks.
#include <remat/engine/backward_observer.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/scope.h>

#include "support/catch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

namespace {

using remat::Scope;

class TestScope final : public Scope, remat::BackwardObserver {
 public:
  explicit TestScope(bool replay = false)
      : Scope(replay ? Phase::kReplay : Phase::kForward),
        remat::BackwardObserver(static_cast<const Scope&>(*this)) {
    set_parts({.backwards = this});
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override { return nullptr; }
  void before_backward(const remat::EdgeList& /*roots*/) override {}
  void before_hooks(size_t /*count*/) override {}
  void before_accumulate(const remat::EdgeList& roots) override {
    ++accumulations;
    if (around()) around()->before_accumulate(roots);
  }
  void after_backward(c10::ArrayRef<at::Tensor> /*gradients*/) override {}
  int accumulations = 0;
};

TEST_CASE("Scopes nest: the innermost is current, and each knows the one around it",
          "[tape][scope]") {
  CHECK(Scope::current() == nullptr);
  {
    TestScope outer;
    CHECK(outer.previous() == nullptr);
    {
      TestScope inner;
      CHECK(Scope::current() == &inner);
      CHECK(inner.previous() == &outer);
    }
    CHECK(Scope::current() == &outer);
  }
  CHECK(Scope::current() == nullptr);
}

TEST_CASE("A scope opened in a replay belongs to it; one around it does not", "[tape][scope]") {
  const TestScope forward;
  CHECK_FALSE(remat::is_recomputing());
  {
    const TestScope replay(/*replay=*/true);
    CHECK(remat::is_recomputing());
    const TestScope inner;
    CHECK(inner.in_replay());
    CHECK(remat::is_recomputing());
  }
  CHECK_FALSE(forward.in_replay());
  CHECK_FALSE(remat::is_recomputing());
}

TEST_CASE("A backward that accumulates is told to every scope around it", "[tape][scope]") {
  TestScope outer;
  TestScope inner;
  remat::BackwardObserver::current()->before_accumulate({});
  CHECK(inner.accumulations == 1);
  CHECK(outer.accumulations == 1);
}

TEST_CASE("Suspended scopes are hidden, also from scopes opened meanwhile, and come back",
          "[tape][scope]") {
  const TestScope replay(/*replay=*/true);
  {
    const remat::SuspendScopes suspend;
    CHECK(Scope::current() == nullptr);
    CHECK_FALSE(remat::is_recomputing());
    const TestScope inside;
    CHECK(inside.previous() == nullptr);
    CHECK_FALSE(inside.in_replay());
  }
  CHECK(Scope::current() == &replay);
}

TEST_CASE("A new thread has no scope", "[tape][scope]") {
  const TestScope scope;
  Scope* seen = nullptr;
  std::thread([&seen] { seen = Scope::current(); }).join();
  CHECK(seen == nullptr);
  CHECK(Scope::current() == &scope);
}

// Returns the exit status of a forked child that runs `fn`; 0 is success.
template <class Fn>
int in_child(Fn fn) {
  const pid_t child = fork();
  if (child == 0) _exit(fn() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST_CASE("A forked child has no scope, may open its own, and may leave its parent's",
          "[tape][scope]") {
  auto outer = std::make_unique<TestScope>();
  auto inner = std::make_unique<TestScope>(/*replay=*/true);
  const auto child = [&] {
    if (Scope::current() || remat::is_recomputing()) return false;
    {
      const TestScope own;
      if (Scope::current() != &own || own.previous()) return false;
    }
    inner.reset();
    outer.reset();
    return Scope::current() == nullptr;
  };
  CHECK(in_child(child) == 0);
  CHECK(Scope::current() == inner.get());
  inner.reset();
  outer.reset();
}

}  // namespace
