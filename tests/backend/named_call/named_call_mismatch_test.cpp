// SPDX-License-Identifier: BSD-3-Clause

// Errors of a replay that makes other named calls than the forward.
#include <string>
#include <vector>

#include "support/call_errors.h"
#include "support/named_step.h"

namespace remat {
namespace {

constexpr const char* kOtherCall =
    "A named call is missing, new or renamed, or they come in another order.";

}  // namespace

TEST_CASE("A call that is missing in the replay is reported at the op in its place",
          "[backend][native_op][divergence]") {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    bool changed = false;
    const auto fn = [&](const at::Tensor& x) {
      const at::Tensor h = x.sin();
      return (changed ? h : native_op(exp_of, "a", policy)(h)).cos().exp();
    };
    check_says(divergence(fn, changed), std::string("call 'a' (") + policy_name(policy) + ")",
               "aten::cos(", "A named call is missing");
  }
}

TEST_CASE("A call that is missing at the end of the replay is reported there",
          "[backend][native_op][divergence]") {
  bool changed = false;
  const auto fn = [&](const at::Tensor& x) {
    const at::Tensor h = x.sin().exp();
    return changed ? h : recompute("a", [](const at::Tensor& t) { return t + 1; })(h);
  };
  const std::string text = divergence(fn, changed, {.name = "r", .early_stop = false});
  check_says(text, "call 'a' (RECOMPUTE)", "the end of the function", "A named call is missing");
}

TEST_CASE("A call that the forward did not make is reported at once",
          "[backend][native_op][divergence]") {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    bool changed = false;
    int runs = 0;
    const auto call = [&](const at::Tensor& t) { return ++runs, t.exp(); };
    const auto fn = [&](const at::Tensor& x) {
      const at::Tensor h = x.sin();
      return (changed ? native_op(call, "a", policy)(h) : h).cos().exp();
    };
    check_says(divergence(fn, changed), "aten::cos(",
               std::string("call 'a' (") + policy_name(policy) + ")",
               "The replay makes a named call that the forward did not make here.");
    CHECK(runs == 0);
  }
}

TEST_CASE("A call with another name in the replay is reported with both",
          "[backend][native_op][divergence]") {
  bool changed = false;
  const auto renamed = [&](const at::Tensor& x) {
    return save(changed ? "b" : "a", exp_of)(x.sin()).cos().exp();
  };
  check_says(divergence(renamed, changed), "call 'a' (SAVE)", "call 'b' (SAVE)", kOtherCall);
  const auto rescoped = [&](const at::Tensor& x) {
    const NameScope scope(changed ? "1" : "0");
    return save("a", exp_of)(x.sin()).cos().exp();
  };
  check_says(divergence(rescoped, changed), "call '0/a' (SAVE)", "call '1/a' (SAVE)", kOtherCall);
  const auto swapped = [&](const at::Tensor& x) {
    const at::Tensor h = save(changed ? "b" : "a", exp_of)(x.sin());
    return save(changed ? "a" : "b", exp_of)(h).cos().exp();
  };
  check_says(divergence(swapped, changed), "call 'a' (SAVE)", "call 'b' (SAVE)", kOtherCall);
}

TEST_CASE("A call with another policy in the replay is reported with both",
          "[backend][native_op][divergence]") {
  bool changed = false;
  const auto call = [&](Policy forward, Policy replay) {
    return [&changed, forward, replay](const at::Tensor& x) {
      return native_op(exp_of, "a", changed ? replay : forward)(x.sin()).cos().exp();
    };
  };
  check_says(divergence(call(Policy::kSave, Policy::kRecompute), changed), "call 'a' (SAVE)",
             "call 'a' (RECOMPUTE)", "Conflicting recompute settings");
  check_says(divergence(call(Policy::kRecompute, Policy::kSave), changed), "call 'a' (RECOMPUTE)",
             "call 'a' (SAVE)", "Conflicting recompute settings");
}

TEST_CASE("Without determinism checks calls must still be the same",
          "[backend][native_op][divergence]") {
  const CheckpointOptions options{.name = "r", .determinism = Determinism::kNone};
  bool changed = false;
  const auto renamed = [&](const at::Tensor& x) {
    return save(changed ? "b" : "a", exp_of)(x.sin()).cos().exp();
  };
  check_says(divergence(renamed, changed, options), "call 'a' (SAVE)", "call 'b' (SAVE)",
             kOtherCall);
  const auto policy = [&](const at::Tensor& x) {
    return native_op(exp_of, "a", changed ? Policy::kRecompute : Policy::kSave)(x.sin()).exp();
  };
  check_says(divergence(policy, changed, options), "call 'a' (SAVE)", "call 'a' (RECOMPUTE)",
             "Conflicting recompute settings");
  const auto extra = [&](const at::Tensor& x) {
    return (changed ? save("a", exp_of)(x.sin()) : x.sin()).cos().exp();
  };
  check_says(divergence(extra, changed, options), "no further named call", "call 'a' (SAVE)",
             "The replay makes a named call that the forward did not make here.");
}

TEST_CASE("A SAVE call on other arguments is reported with both",
          "[backend][native_op][divergence]") {
  bool changed = false;
  const at::Tensor w = torch::ones({4, 8});
  const auto fn = [&](const at::Tensor& x) {
    return save("a", exp_of)(changed ? w : x.sin()).cos().exp();
  };
  const std::string text = divergence(fn, changed);
  CHECK_THAT(text, ContainsSubstring("[replay] region 'r', slot ") &&
                       ContainsSubstring("as in the forward, got "));
}

}  // namespace remat
