// SPDX-License-Identifier: BSD-3-Clause

// The rules of named calls: names, policies, phases, misuse, and what a replay that calls others
// says.
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

/// What the forward of `fn` in a region throws.
std::string forward_error(const TensorFn& fn, const CheckpointOptions& options = {.name = "r"}) {
  const at::Tensor x = step_input();
  return error_text([&] { checkpoint(options)(fn)(x); });
}

/// What backward throws if `changed` is true from the end of the forward on.
std::string divergence(const TensorFn& fn, bool& changed,
                       const CheckpointOptions& options = {.name = "r"}) {
  changed = false;
  const at::Tensor loss = checkpoint(options)(fn)(step_input()).sum();
  changed = true;
  return error_text([&] { loss.backward(); });
}

void check_says(const std::string& text, const std::string& expected, const std::string& got,
                const std::string& cause) {
  CHECK_THAT(text, ContainsSubstring("[replay] region 'r', slot ") &&
                       ContainsSubstring("expected " + expected) &&
                       ContainsSubstring("as in the forward, got " + got) &&
                       ContainsSubstring(cause) && ContainsSubstring("with a StateHook."));
}

constexpr const char* kOtherCall =
    "A named call is missing, new or renamed, or they come in another order.";

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

/// What the region of `fn` keeps, but for its argument, which is a leaf.
size_t kept_bytes(const TensorFn& fn) {
  const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
  return memory_report().bytes;
}

constexpr size_t kBytes = 4 * 32;  // of step_input()

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NamesTwice : torch::autograd::Function<NamesTwice> {
  static constexpr std::array saved_names{"x", "x"};
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& x) { return x.sin(); }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return grads;
  }
};

/// Saves its argument under these names.
struct SavesAs : torch::autograd::Function<SavesAs> {
  static inline std::vector<std::string> names;
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    auto handle = get_handle(ctx, "a", Policy::kSave);
    if (auto saved = handle.maybe_load_saved()) return (*saved)[0];
    std::vector<RematHandle::NamedTensor> tensors;
    for (const std::string& name : names) tensors.emplace_back(name, x);
    handle.save_for_backward(tensors);
    return handle.record_outputs(x.sin());
  }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return grads;
  }
};

}  // namespace

TEST_CASE("Names of saved tensors are checked", "[backend][native_op][rules]") {
  CHECK_THAT(error_text([] { op<NamesTwice>("a", Policy::kSave); }),
             ContainsSubstring("[op] call 'a' (SAVE): saved_names: expected names that are not "
                               "empty and are used once, got 'x'"));
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{""}, {"x.y"}, {"x", "x"}}) {
    SavesAs::names = names;
    CHECK_THAT(forward_error([](const at::Tensor& x) { return SavesAs::apply(x); }),
               ContainsSubstring("save_for_backward: name '" + names[0] +
                                 "': expected names that are not empty, have no dot and are used "
                                 "once"));
  }
}

TEST_CASE("Outside of regions a named call is a plain one", "[backend][native_op][rules]") {
  const at::Tensor x = step_input();
  int packed = 0;
  {
    const SavedTensorsHooksGuard guard(SavedTensorsHooks{
        .pack = [&](const at::Tensor& t) -> std::any { return ++packed, t; },
        .unpack = [](const std::any& t) { return std::any_cast<at::Tensor>(t); }});
    for (int i = 0; i < 2; ++i) {  // a name may be used again
      const auto call = [](const at::Tensor& t, double scale) { return (t * scale).sin().exp(); };
      CHECK(save("a", call)(x, 2.0).requires_grad());
    }
  }
  CHECK(packed == 4);  // sin's argument and exp's result, twice
  const auto fails = [](const at::Tensor& t) -> at::Tensor {
    throw std::runtime_error(t.defined() ? "mine" : "");
  };
  CHECK_THROWS_WITH(save("a", fails)(x), "mine");
  CHECK_FALSE(is_recomputing());
  check_as_plain([](const at::Tensor& t) { return save("a", sin_of)(t).exp(); });
}

TEST_CASE("A named call needs a function and a name", "[backend][native_op][rules]") {
  CHECK_THAT(error_text([] { native_op(TensorFn(), "a", Policy::kSave); }),
             ContainsSubstring("[native_op] call 'a' (SAVE): fn: expected a function, got an empty "
                               "one"));
  CHECK_THAT(error_text([] { native_op(sin_of, "", Policy::kSave); }),
             ContainsSubstring("[native_op] name: expected a name, must be non-empty"));
  CHECK_THAT(error_text([] { region(sin_of, "", {.recompute = true}); }),
             ContainsSubstring("must be non-empty"));
}

TEST_CASE("region() is native_op() by its other name", "[backend][native_op][rules]") {
  for (const bool recompute : {false, true}) {
    int runs = 0;
    const auto call = [&](const at::Tensor& t) { return ++runs, t.sin().exp(); };
    const auto fn = [&](const at::Tensor& x) {
      return region(call, "a", {.recompute = recompute})(x.cos()).tanh();
    };
    step(checkpoint()(fn));
    CHECK(runs == (recompute ? 2 : 1));
  }
}

TEST_CASE("Arguments that are no tensors reach the call as they are",
          "[backend][native_op][rules]") {
  struct Opaque {
    std::vector<at::Tensor> weights;
    std::string mode;
  };
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    const auto call = [](const at::Tensor& t, double alpha, const Opaque& opaque) {
      CHECK(opaque.mode == "plain");
      return (t * alpha + opaque.weights[0]).exp();
    };
    const at::Tensor w = torch::ones({8}).requires_grad_();
    check_as_plain(
        [&](const at::Tensor& x) {
          return native_op(call, "a", policy)(x.sin(), 2.0, Opaque{{w}, "plain"}).tanh();
        },
        {w});
  }
}

TEST_CASE("A SAVE call's result is found however a RECOMPUTE call comes by it",
          "[backend][native_op][rules]") {
  // As argument, in a container, in a struct that nobody can look into, and by capture.
  struct Opaque {
    at::Tensor tensor;
  };
  check_as_plain([](const at::Tensor& x) {
    const at::Tensor a = save("a", sin_of)(x);
    const at::Tensor b =
        recompute("b", [](const Tensors& list) { return list[1].exp(); })(Tensors{x, a});
    const at::Tensor c =
        recompute("c", [](const Opaque& opaque) { return opaque.tensor.cos().exp(); })(Opaque{a});
    const at::Tensor d = recompute("d", [&](const at::Tensor& t) { return (t + a).exp(); })(x);
    return b * c * d;
  });
}

TEST_CASE("A name is used once in a region", "[backend][native_op][rules]") {
  for (const auto& [first, second] :
       {std::pair(Policy::kSave, Policy::kSave), std::pair(Policy::kRecompute, Policy::kRecompute),
        std::pair(Policy::kSave, Policy::kRecompute)}) {
    const std::string text = forward_error([&](const at::Tensor& x) {
      return native_op(sin_of, "a", second)(native_op(sin_of, "a", first)(x));
    });
    CHECK_THAT(text, ContainsSubstring("[checkpoint] region 'r', call 'a' (") &&
                         ContainsSubstring("expected a name that is used once in a region"));
  }
  check_as_plain([](const at::Tensor& x) {
    const auto inner = [](const at::Tensor& t) { return save("a", exp_of)(t.cos()).sin(); };
    return checkpoint()(inner)(checkpoint()(inner)(save("a", sin_of)(x))).exp();
  });
}

TEST_CASE("A SAVE call in a SAVE call belongs to it and takes no name",
          "[backend][native_op][rules]") {
  int runs = 0;
  const auto inner = [&](const at::Tensor& t) { return ++runs, t.exp(); };
  const auto outer = [&](const at::Tensor& t) { return save("a", inner)(t.sin()).cos(); };
  const auto fn = [&](const at::Tensor& x) {
    return save("a", inner)(save("outer", outer)(x.sin())).exp();
  };
  step(checkpoint()(fn));
  CHECK(runs == 2);  // once each
  check_as_plain(fn);
}

TEST_CASE("Only SAVE calls may be in a SAVE call; a RECOMPUTE call may have any in it",
          "[backend][native_op][rules]") {
  CHECK_THAT(
      forward_error([](const at::Tensor& x) {
        return save("a", [](const at::Tensor& t) { return recompute("b", sin_of)(t); })(x);
      }),
      ContainsSubstring("[checkpoint] region 'r', call 'b' (RECOMPUTE): expected SAVE calls only "
                        "inside call 'a' (SAVE), got a RECOMPUTE call"));
  int outer_runs = 0;
  int inner_runs = 0;
  const auto inner = [&](const at::Tensor& t) { return ++inner_runs, t.sin().exp(); };
  const auto outer = [&](const at::Tensor& t) {
    ++outer_runs;
    return save("inner", inner)(t.cos()).tanh();
  };
  const auto fn = [&](const at::Tensor& x) { return recompute("outer", outer)(x).exp(); };
  step(checkpoint()(fn));
  CHECK(outer_runs == 2);
  CHECK(inner_runs == 1);
  check_as_plain(fn);
}

TEST_CASE("A region in a named call has names and policies of its own",
          "[backend][native_op][rules]") {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    const auto inner = [](const at::Tensor& t) {
      return recompute("b", exp_of)(save("a", sin_of)(t.cos())).tanh();
    };
    const auto outer = [&](const at::Tensor& t) { return checkpoint()(inner)(t.sin()).exp(); };
    check_as_plain(
        [&](const at::Tensor& x) { return native_op(outer, "a", policy)(x.cos()).tanh().exp(); });
  }
}

TEST_CASE("Each backward runs a RECOMPUTE call again, and no SAVE call",
          "[backend][native_op][rules]") {
  std::vector<bool> in_save;
  std::vector<bool> in_recompute;
  const auto a = [&](const at::Tensor& t) {
    in_save.push_back(is_recomputing());
    return t.sin().exp();
  };
  const auto b = [&](const at::Tensor& t) {
    in_recompute.push_back(is_recomputing());
    return t.cos().exp();
  };
  const at::Tensor x = step_input();
  const at::Tensor y = checkpoint()(
      [&](const at::Tensor& t) { return recompute("b", b)(save("a", a)(t)).tanh(); })(x);
  const at::Tensor loss = y.sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor first = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  loss.backward();
  CHECK(in_save == std::vector{false});
  CHECK(in_recompute == std::vector{false, true, true});
  CHECK(same_bits(x.grad(), first));
}

TEST_CASE("A call after the last saved tensor is not reached by a replay",
          "[backend][native_op][rules]") {
  int runs = 0;
  const auto last = [&](const at::Tensor& t) { return ++runs, t + 1; };
  const auto fn = [&](const at::Tensor& x) { return recompute("last", last)(x.sin().exp()); };
  step(checkpoint()(fn));
  CHECK(runs == 1);
  step(checkpoint({.early_stop = false})(fn));
  CHECK(runs == 1 + 2);
}

TEST_CASE("Name scopes join their prefixes and unwind with exceptions",
          "[backend][native_op][name_scope]") {
  std::vector<std::string> names;
  const auto note = [&](const char* name) { names.push_back(NameScope::full_name(name)); };
  checkpoint({.name = "r"})([&](const at::Tensor& x) {
    note("a");
    const NameScope model("model");
    try {
      const NameScope layer("layer");
      note("b");
      throw std::runtime_error("mine");
    } catch (const std::runtime_error&) {
      note("c");
    }
    {
      const NameScope head("head");
      note("d");
    }
    note("e");
    return x.sin();
  })(step_input());
  CHECK(names ==
        std::vector<std::string>{"a", "model/layer/b", "model/c", "model/head/d", "model/e"});
}

TEST_CASE("A name scope needs a prefix", "[backend][native_op][name_scope]") {
  CHECK_THAT(error_text([] { const NameScope scope(""); }),
             ContainsSubstring("[NameScope] prefix: expected a prefix, must be non-empty"));
}

TEST_CASE("Code that runs twice has other names in other scopes",
          "[backend][native_op][name_scope]") {
  const auto block = [](const at::Tensor& x) {
    return recompute("b", exp_of)(save("a", sin_of)(x.cos())).tanh();
  };
  const auto twice = [&](const char* first, const char* second) {
    return [=](at::Tensor x) {
      for (const char* prefix : {first, second}) {
        const NameScope scope(prefix);
        x = block(x);
      }
      return x;
    };
  };
  check_as_plain(twice("0", "1"));
  CHECK_THAT(forward_error(twice("layer", "layer")),
             ContainsSubstring("call 'layer/a' (SAVE): expected a name that is used once"));
  CHECK_THAT(forward_error([&](const at::Tensor& x) {
               {
                 const NameScope scope("layer");
                 save("a", sin_of)(x);
               }
               return save("layer/a", sin_of)(x);
             }),
             ContainsSubstring("call 'layer/a' (SAVE): expected a name that is used once"));
}

TEST_CASE("A name scope counts for the calls of the region that opened it",
          "[backend][native_op][name_scope]") {
  std::vector<std::string> names;
  const auto inner = [&](const at::Tensor& x) {
    names.push_back(NameScope::full_name("a"));
    return save("a", exp_of)(x.cos()).sin();
  };
  const auto outer = [&](const at::Tensor& x) {
    const NameScope scope("outer");
    return checkpoint()(inner)(save("a", sin_of)(x)).exp();
  };
  {
    const NameScope around("around");
    check_as_plain(outer);
    // The call stays what it was although backward runs under another scope.
    const at::Tensor y = checkpoint()(outer)(step_input());
    const NameScope another("another");
    CHECK_NOTHROW(y.sum().backward());
  }
  for (const std::string& name : names) CHECK((name == "a" || name == "around/outer/a"));
  CHECK(std::count(names.begin(), names.end(), "a") > 1);
}

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
             "call 'a' (RECOMPUTE)", "Conflicting policies");
  check_says(divergence(call(Policy::kRecompute, Policy::kSave), changed), "call 'a' (RECOMPUTE)",
             "call 'a' (SAVE)", "Conflicting policies");
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
             "Conflicting policies");
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

TEST_CASE("implicit_keep = kError raises where a bare op reads a SAVE call's result",
          "[backend][native_op][implicit_keep]") {
  const CheckpointOptions strict{.name = "r", .implicit_keep = ImplicitKeep::kError};
  const auto bare = [](const at::Tensor& x) { return save("a", sin_of)(x).t().cos().exp(); };
  CHECK_THAT(forward_error(bare, strict),
             ContainsSubstring("[checkpoint] region 'r', call 'a' (SAVE): expected no bare op to "
                               "read its result (float32 [4, 8] on cpu") &&
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

TEST_CASE("What recompute_needs_tensor asks for is kept, and not implicitly",
          "[backend][native_op][recompute_needs_tensor]") {
  // A read that no op does.
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
               ContainsSubstring("[placeholder] slot 'a' (SAVE) of region 'r': expected a use of "
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
  recompute_needs_tensor(at::ones({2}), at::Tensor());  // outside of regions
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

TEST_CASE("OFFLOAD needs a place to keep things in", "[backend][native_op][rules]") {
  const auto fn = [](const at::Tensor& x) {
    return native_op(exp_of, "a", Policy::kOffload)(x.sin()).cos();
  };
  const char* const text =
      "[checkpoint] region 'r', call 'a' (OFFLOAD): expected a place to keep its tensors in, got "
      "neither CheckpointOptions::offload_store nor CheckpointOptions::saved_tensors_hooks";
  CHECK_THAT(forward_error(fn), ContainsSubstring(text));
  check_as_plain(fn, {}, {.offload_store = host_memory_store()});
}

TEST_CASE("A SAVE call needs a region whose ops are seen", "[backend][native_op][rules]") {
  const CheckpointOptions unseen{.name = "r", .intercept = false};
  CHECK_THAT(forward_error([](const at::Tensor& x) { return save("a", sin_of)(x); }, unseen),
             ContainsSubstring("[checkpoint] region 'r', call 'a' (SAVE): expected a region whose "
                               "ops are seen, got one with intercept = false"));
  check_as_plain([](const at::Tensor& x) { return recompute("a", sin_of)(x).exp(); }, {}, unseen);
}

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

TEST_CASE("What a call wrote into its argument before it threw stays written",
          "[backend][native_op][exceptions]") {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    const auto fails = [&](at::Tensor& t) -> at::Tensor {
      t.mul_(2);
      throw std::runtime_error("mine");
    };
    check_as_plain([&](const at::Tensor& x) {
      at::Tensor h = x.sin();
      try {
        native_op(fails, "fails", policy)(h);
      } catch (const std::runtime_error&) {
      }
      return h.exp();
    });
  }
}

TEST_CASE("A SAVE call that wrote outside and threw raises in backward, and writes no more",
          "[backend][native_op][exceptions]") {
  const at::Tensor count = torch::zeros({});
  const auto fails = [&](const at::Tensor& /*t*/) -> at::Tensor {
    count.add_(1);
    throw std::runtime_error("mine");
  };
  const at::Tensor y = checkpoint({.name = "r"})([&](const at::Tensor& x) {
    try {
      save("fails", fails)(x.sin());
    } catch (const std::runtime_error&) {
    }
    return (x * count).exp();
  })(step_input());
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring("modified by an inplace operation") &&
                 ContainsSubstring("[replay] region 'r', slot "));
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
    } catch (const std::exception&) {  // the error of the replay too
    }
    return h.exp();
  };
  CHECK_THAT(divergence(fn, changed),
             ContainsSubstring("[replay] region 'r', call 'a' (SAVE): expected the exception that "
                               "it threw in the forward, got a result"));
}

}  // namespace remat
