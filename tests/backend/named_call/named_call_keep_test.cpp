// SPDX-License-Identifier: BSD-3-Clause

// Results that bare ops read: implicit_keep and recompute_needs_tensor().
#include <c10/util/Exception.h>
#include <string>
#include <tuple>
#include <vector>

#include "support/call_errors.h"
#include "support/default_device.h"
#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

/// Collects warnings instead of printing them.
class Warnings final : public c10::WarningHandler {
 public:
  Warnings() : outer_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  ~Warnings() override { c10::WarningUtils::set_warning_handler(outer_); }

  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }

  std::vector<std::string> texts;

 private:
  c10::WarningHandler* outer_;
};

size_t implicit_bytes(const TensorFn& fn, const CheckpointOptions& options = {.name = "r"}) {
  const at::Tensor y = checkpoint(options)(fn)(step_input());
  return memory_report().implicit_bytes;
}

/// Returns the bytes that the region of `fn` keeps, except its argument, which is a leaf.
size_t kept_bytes(const TensorFn& fn) {
  const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
  return memory_report().bytes;
}

constexpr size_t kBytes = 4 * 32;  // bytes of step_input()

}  // namespace

TEST_CASE("implicit_keep = kError raises where a bare op reads a SAVE call's result",
          "[backend][native_op][implicit_keep]") {
  const CheckpointOptions strict{.name = "r", .implicit_keep = ImplicitKeep::kError};
  const auto bare = [](const at::Tensor& x) { return save("a", sin_of)(x).t().cos().exp(); };
  CHECK_THAT(forward_error(bare, strict),
             ContainsSubstring(on_default_device(
                 "[checkpoint] region 'r', call 'a' (SAVE): expected no bare op to "
                 "read its result (float32 [4, 8] on cpu")) &&
                 ContainsSubstring("128 bytes), got aten::cos, for which it has to be kept. Call "
                                   "recompute_needs_tensor()"));
  SECTION("not once it was asked for") {
    check_as_plain(
        [](const at::Tensor& x) {
          const at::Tensor a = save("a", sin_of)(x);
          recompute_needs_tensor(a);
          return a.cos().exp();
        },
        {}, strict);
  }
  SECTION("not for named calls, nor for shapes and views") {
    check_as_plain(
        [](const at::Tensor& x) {
          const at::Tensor a = save("a", sin_of)(x);
          const at::Tensor zeros = at::zeros_like(a);
          const at::Tensor b = recompute("b", exp_of)(a.t()).t();
          const auto product = [](const at::Tensor& t, const at::Tensor& s) { return t * s; };
          return recompute("d", product)(save("c", exp_of)(a), b + zeros);
        },
        {}, strict);
  }
}

TEST_CASE("implicit_keep = kWarnOnce warns once in a process, and keeps",
          "[backend][native_op][implicit_keep]") {
  Warnings warnings;
  const CheckpointOptions warn{.name = "r", .implicit_keep = ImplicitKeep::kWarnOnce};
  const auto fn = [](const at::Tensor& x) { return save("a", sin_of)(x).cos().exp(); };
  check_as_plain(fn, {}, warn);
  check_as_plain(fn, {}, warn);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("call 'a' (SAVE): expected no bare op to read "
                                                  "its result"));
  CHECK(implicit_bytes(fn, warn) == kBytes);
}

// [cpu]: the host cannot read a device's memory.
TEST_CASE("recompute_needs_tensor keeps its tensor, and reports list it as explicit",
          "[backend][native_op][recompute_needs_tensor][cpu]") {
  // Reads the tensor without an op.
  const auto first_of = [](const at::Tensor& t) { return t.const_data_ptr<float>()[0]; };
  const auto reads = [&](const auto& ask) {
    return [=](const at::Tensor& x) {
      const at::Tensor a = save("a", [](const at::Tensor& t) { return t + 1; })(x);
      ask(a);
      return (x * first_of(a)).exp();
    };
  };
  SECTION("without it the read raises in backward, with the call's name") {
    const at::Tensor y = checkpoint({.name = "r"})(reads([](const at::Tensor&) {}))(step_input());
    CHECK_THAT(error_text([&] { y.sum().backward(); }),
               ContainsSubstring(
                   "[placeholder] result of call 'a' (SAVE) of region 'r': expected a use of "
                   "its shape only, got a read of its memory"));
  }
  SECTION("the result") {
    const auto fn = reads([](const at::Tensor& a) { recompute_needs_tensor(a); });
    CHECK(implicit_bytes(fn) == 0);
    CHECK(kept_bytes(fn) == kBytes);
    check_as_plain(fn);
  }
  SECTION("a view of it, also of a view") {
    const auto fn =
        reads([](const at::Tensor& a) { recompute_needs_tensor(a.t().narrow(0, 1, 2)); });
    CHECK(kept_bytes(fn) == kBytes);
    check_as_plain(fn);
  }
  SECTION("several at once") {
    const auto fn = [&](const at::Tensor& x) {
      const at::Tensor a = save("a", [](const at::Tensor& t) { return t + 1; })(x);
      const at::Tensor b = save("b", [](const at::Tensor& t) { return t + 2; })(x);
      recompute_needs_tensor(a, b);
      return (x * first_of(a) * first_of(b)).exp();
    };
    CHECK(kept_bytes(fn) == 2 * kBytes);
    check_as_plain(fn);
  }
  SECTION("of two results the one that is marked") {
    const auto fn = [&](const at::Tensor& x) {
      const auto two = [](const at::Tensor& t) { return std::tuple(t + 1, t + 2); };
      const auto [a, b] = save("a", two)(x);
      recompute_needs_tensor(b);
      return (x * first_of(b)).exp();
    };
    CHECK(kept_bytes(fn) == kBytes);
    check_as_plain(fn);
  }
}

TEST_CASE("recompute_needs_tensor does nothing for what needs no keeping",
          "[backend][native_op][recompute_needs_tensor]") {
  recompute_needs_tensor(at::ones({2}), at::Tensor());  // a call outside regions
  const auto fn = [](const at::Tensor& x) {
    const at::Tensor bare = x.sin();
    const at::Tensor again = recompute("b", sin_of)(x);
    recompute_needs_tensor(x, bare, again, at::Tensor());
    return (bare + again).exp();
  };
  CHECK(kept_bytes(fn) == 0);
  check_as_plain(fn);
  const auto in_call = [](const at::Tensor& x) {
    return save("a", [](const at::Tensor& t) {
      recompute_needs_tensor(t);
      return t.exp();
    })(x.sin());
  };
  CHECK(implicit_bytes(in_call) == 0);
  check_as_plain(in_call);
}

}  // namespace remat
