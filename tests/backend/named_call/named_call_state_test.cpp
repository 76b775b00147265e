// SPDX-License-Identifier: BSD-3-Clause

// Regions with named calls read and restore the state of StateHooks at the right times.
#include <any>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

using Log = std::vector<std::string>;

/// A number that calls change, as state; the hook's own calls are logged.
struct Counter final : StateHook {
  explicit Counter(Log* shared_log = nullptr, std::string hook_name = "")
      : log(shared_log), name(std::move(hook_name)) {}

  std::any snapshot() override {
    note("snapshot ", value);
    return value;
  }
  void restore(const std::any& state) override {
    value = std::any_cast<int>(state);
    note("restore ", value);
  }
  void note(const char* what, int number) {
    if (log) log->push_back(name + what + std::to_string(number));
  }

  Log* log;
  std::string name;
  int value = 0;
};

}  // namespace

TEST_CASE("State is read at entry and after each SAVE call, and restored at these places",
          "[backend][native_op][state_hook]") {
  Log log;
  const auto counter = std::make_shared<Counter>(&log);
  const auto count = [&](const at::Tensor& t) { return t.exp() * ++counter->value; };
  const auto fn = [&](const at::Tensor& x) {
    const at::Tensor a = save("a", count)(x.sin());
    const at::Tensor b = recompute("b", count)(a);
    const at::Tensor c = save("c", count)(b);
    return count(c);
  };
  const CheckpointOptions options{.state_hooks = {counter}};
  SECTION("what is asked of it") {
    const at::Tensor y = checkpoint(options)(fn)(step_input());
    CHECK(log == Log{"snapshot 0", "snapshot 1", "snapshot 3"});
    CHECK(counter->value == 4);
    counter->value = 10;
    log.clear();
    y.sum().backward();
    CHECK(log == Log{"snapshot 10", "restore 0", "restore 1", "restore 3", "restore 10"});
    CHECK(counter->value == 10);
  }
  SECTION("gradients") {
    const Tensors got = step(checkpoint(options)(fn));
    counter->value = 0;
    check_same(got, step(fn));
  }
  SECTION("a second replay is as the first") {
    const at::Tensor x = step_input();
    const at::Tensor loss = checkpoint(options)(fn)(x).sum();
    loss.backward({}, /*retain_graph=*/true);
    const at::Tensor first = x.grad().clone();
    x.mutable_grad() = at::Tensor();
    loss.backward();
    CHECK(same_bits(x.grad(), first));
  }
  SECTION("without the hook the state drifts, which raises") {
    const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
    CHECK_THAT(error_text([&] { y.sum().backward(); }),
               ContainsSubstring("A number differs: a counter"));
  }
}

TEST_CASE("State of a call that throws is not read", "[backend][native_op][state_hook]") {
  Log log;
  const auto counter = std::make_shared<Counter>(&log);
  const auto fails = [&](const at::Tensor& /*t*/) -> at::Tensor {
    ++counter->value;
    throw std::runtime_error("mine");
  };
  const auto fn = [&](const at::Tensor& x) {
    try {
      save("a", fails)(x);
    } catch (const std::runtime_error&) {
    }
    return (x * counter->value).exp();
  };
  const at::Tensor y = checkpoint({.state_hooks = {counter}})(fn)(step_input());
  CHECK(log == Log{"snapshot 0"});
  y.sum().backward();
  CHECK(counter->value == 1);
}

TEST_CASE("Several state hooks are asked in their order", "[backend][native_op][state_hook]") {
  Log log;
  const auto first = std::make_shared<Counter>(&log, "1 ");
  const auto second = std::make_shared<Counter>(&log, "2 ");
  second->value = 5;
  const auto fn = [&](const at::Tensor& x) {
    const auto call = [&](const at::Tensor& t) {
      first->value += 1;
      second->value += 2;
      return t.exp();
    };
    return (save("a", call)(x.sin()) * first->value * second->value).exp();
  };
  const at::Tensor y = checkpoint({.state_hooks = {first, second}})(fn)(step_input());
  CHECK(log == Log{"1 snapshot 0", "2 snapshot 5", "1 snapshot 1", "2 snapshot 7"});
  log.clear();
  y.sum().backward();
  CHECK(log == Log{"1 snapshot 1", "2 snapshot 7", "1 restore 0", "2 restore 5", "1 restore 1",
                   "2 restore 7", "2 restore 7", "1 restore 1"});
}

TEST_CASE("Readers see the outside writes of a SAVE call, also after older writes",
          "[backend][native_op][state_hook]") {
  const auto fn_on = [](const at::Tensor& buffer) {
    return TensorFn([buffer](const at::Tensor& x) {
      buffer.add_(1);
      const auto doubles = [&](const at::Tensor& t) {
        buffer.mul_(2);
        return t.exp();
      };
      const at::Tensor y = save("a", doubles)(x);
      return (y.cos() * buffer).sin();
    });
  };
  const at::Tensor plain = torch::ones({8});
  const at::Tensor ours = torch::ones({8});
  check_same(step(checkpoint({.name = "r"})(fn_on(ours))), step(fn_on(plain)));
  CHECK(same_bits(ours, plain));
}

}  // namespace remat
