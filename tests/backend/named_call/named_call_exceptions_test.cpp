// SPDX-License-Identifier: BSD-3-Clause

// Named calls that throw.
#include <exception>
#include <stdexcept>
#include <string>

#include "support/call_errors.h"
#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {

TEST_CASE("An exception of a call that nobody catches ends the region",
          "[backend][native_op][exceptions]") {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    const auto fails = [](const at::Tensor& t) -> at::Tensor {
      t.sin().exp();
      TORCH_CHECK(false, "mine");
    };
    const std::string text = forward_error([&](const at::Tensor& x) {
      const NameScope scope("scope");
      return native_op(fails, "a", policy)(x.cos());
    });
    CHECK_THAT(text, ContainsSubstring("mine"));
    check_as_plain([](const at::Tensor& x) { return save("a", sin_of)(x).exp(); });
    CHECK(NameScope::full_name("a") == "a");
  }
}

TEST_CASE("A call whose exception the function catches throws it again in the replay",
          "[backend][native_op][exceptions]") {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    INFO(policy_name(policy));
    int runs = 0;
    const auto fails = [&](const at::Tensor& t) -> at::Tensor {
      ++runs;
      const at::Tensor lost = t.sin().exp();
      if (lost.defined()) throw std::runtime_error("mine");
      return lost;
    };
    const auto fn = [&](const at::Tensor& x) {
      const at::Tensor h = save("before", sin_of)(x.cos());
      at::Tensor y;
      try {
        y = native_op(fails, "fails", policy)(x.sin());
      } catch (const std::runtime_error&) {
        y = save("after", exp_of)(x.sin());
      }
      return (y * h).cos().exp();
    };
    step(checkpoint()(fn));
    CHECK(runs == 2);
    check_as_plain(fn);
  }
}

TEST_CASE("A call that threw may have read a SAVE call's result",
          "[backend][native_op][exceptions]") {
  const auto fails = [](const at::Tensor& t) -> at::Tensor {
    const float value = t.sum().item<float>();
    throw std::runtime_error(std::to_string(value));
  };
  check_as_plain([&](const at::Tensor& x) {
    const at::Tensor h = save("before", sin_of)(x.cos());
    std::string text;
    try {
      save("fails", fails)(h);
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    return (x * std::stof(text)).exp();
  });
}

TEST_CASE("A RECOMPUTE call's write into its argument stays if the call throws afterwards",
          "[backend][native_op][exceptions]") {
  const auto fails = [&](at::Tensor& t) -> at::Tensor {
    t.mul_(2);
    throw std::runtime_error("mine");
  };
  const auto fn = [&](const at::Tensor& x, Policy policy) {
    at::Tensor h = x.sin();
    try {
      native_op(fails, "fails", policy)(h);
    } catch (const std::runtime_error&) {
    }
    return h.exp();
  };
  check_as_plain([&](const at::Tensor& x) { return fn(x, Policy::kRecompute); });
  const auto saved = [&](const at::Tensor& x) { return fn(x, Policy::kSave); };
  CHECK_THAT(error_text([&] { checkpoint({.name = "r"})(saved)(step_input()); }),
             ContainsSubstring("region 'r', call 'fails' (SAVE): expected a SAVE call that writes "
                               "what it has not made to return"));
}

TEST_CASE("A SAVE call that wrote outside and threw is refused when the region ends",
          "[backend][native_op][exceptions]") {
  const at::Tensor count = torch::zeros({});
  const auto fails = [&](const at::Tensor& /*t*/) -> at::Tensor {
    count.add_(1);
    throw std::runtime_error("mine");
  };
  const auto fn = [&](const at::Tensor& x) {
    try {
      save("fails", fails)(x.sin());
    } catch (const std::runtime_error&) {
    }
    return (x * count).exp();
  };
  CHECK_THAT(
      error_text([&] { checkpoint({.name = "r"})(fn)(step_input()); }),
      ContainsSubstring("region 'r', call 'fails' (SAVE): expected a SAVE call that writes") &&
          ContainsSubstring("threw, and a function that went on"));
  CHECK(count.item<float>() == 1);
}

TEST_CASE("A SAVE call that threw in the forward only is an error",
          "[backend][native_op][exceptions]") {
  bool changed = false;
  const auto fails = [&](const at::Tensor& t) -> at::Tensor {
    if (!changed) throw std::runtime_error("mine");
    return t;
  };
  const auto fn = [&](const at::Tensor& x) {
    const at::Tensor h = x.sin();
    try {
      save("a", fails)(h);
    } catch (const std::exception&) {  // catches the error of the replay too
    }
    return h.exp();
  };
  CHECK_THAT(divergence(fn, changed),
             ContainsSubstring("[replay] region 'r', call 'a' (SAVE): expected the exception that "
                               "it threw in the forward, got a result"));
}

}  // namespace remat
