// SPDX-License-Identifier: BSD-3-Clause

// Rules of named calls: names, policies, phases, misuse.
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/call_errors.h"
#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NamesTwice : torch::autograd::Function<NamesTwice> {
  static constexpr std::array saved_names{"x", "x"};
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& x) { return x.sin(); }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return grads;
  }
};

/// Saves its argument once under each of `names`.
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
    for (int i = 0; i < 2; ++i) {  // outside regions a name may be used again
      const auto call = [](const at::Tensor& t, double scale) { return (t * scale).sin().exp(); };
      CHECK(save("a", call)(x, 2.0).requires_grad());
    }
  }
  CHECK(packed == 4);  // the argument of sin and the result of exp, twice
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
  // The tensor is passed as argument, in a container, in a struct that remat cannot look into, and
  // by capture.
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
  CHECK(runs == 2);  // each ran once, in the forward
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
    // The call keeps its name although backward runs under another scope.
    const at::Tensor y = checkpoint()(outer)(step_input());
    const NameScope another("another");
    CHECK_NOTHROW(y.sum().backward());
  }
  for (const std::string& name : names) CHECK((name == "a" || name == "around/outer/a"));
  CHECK(std::count(names.begin(), names.end(), "a") > 1);
}

TEST_CASE("OFFLOAD needs a place to keep things in", "[backend][native_op][rules]") {
  const auto fn = [](const at::Tensor& x) {
    return native_op(exp_of, "a", Policy::kOffload)(x.sin()).cos();
  };
  const char* const text =
      "[checkpoint] region 'r', call 'a' (OFFLOAD): expected a place to keep its tensors in, got "
      "neither CheckpointOptions::offload_store nor CheckpointOptions::saved_tensors_hooks "
      "(offload_store=..., saved_tensors_hooks=... in Python). Set one of them";
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

}  // namespace remat
