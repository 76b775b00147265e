// SPDX-License-Identifier: BSD-3-Clause

// What named calls return: kinds of results, views, placeholders in replays, hooks on results,
// writes in place, gradients that are off, tied weights, several backwards.
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

struct Pair {
  at::Tensor sum;
  std::vector<at::Tensor> parts;
  int count = 0;  // travels with the struct
};

}  // namespace

template <>
struct TensorTree<Pair> {
  template <class Self, class F>
  static void visit(Self& self, F&& f) {
    f(self.sum);
    f(self.parts);
  }
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::array kPolicies{Policy::kSave, Policy::kRecompute};

/// Reads its saved tensor twice in one backward.
struct ReadsTwice : torch::autograd::Function<ReadsTwice> {
  static constexpr std::array saved_names{"x", "e"};
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor e = x.exp();
    ctx->save_for_backward({x, e});
    return e * x;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto first = ctx->get_saved_variables();
    const auto second = ctx->get_saved_variables();
    return {grads[0] * first[1] * (1 + second[0])};
  }
};

/// Saves its own output.
struct SavesOutput : torch::autograd::Function<SavesOutput> {
  static constexpr std::array saved_names{"y"};
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor y = x.exp();
    ctx->save_for_backward({y});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

/// Writes its argument and saves it.
struct DoublesInPlace : torch::autograd::Function<DoublesInPlace> {
  static constexpr std::array saved_names{"x"};
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x) {
    x.mul_(2);
    ctx->mark_dirty({x});
    ctx->save_for_backward({x});
    return x;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {2 * grads[0] + 0 * ctx->get_saved_variables()[0]};
  }
};

/// sin and cos by the protocol of handles; the sin that it saves is the one it returns.
struct SinCos : torch::autograd::Function<SinCos> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x) {
    auto handle = get_handle(ctx, "sin_cos", Policy::kSave);
    if (auto saved = handle.maybe_load_saved()) {
      CHECK(saved->size() == 2);
      CHECK((*saved)[0].sizes() == at::IntArrayRef{4, 8});
      CHECK((*saved)[1].sizes() == at::IntArrayRef{8, 4});
      return *saved;
    }
    const at::Tensor sin = x.sin();
    const at::Tensor cos = x.cos();
    handle.save_for_backward({{"sin", sin}, {"cos", cos}});
    return handle.record_outputs({sin, cos.t().contiguous()});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[1] - grads[1].t() * saved[0]};
  }
};

/// Multiplies by a number that it leaves in its context; says when it runs.
struct Scales : torch::autograd::Function<Scales> {
  static constexpr std::array saved_names{"x"};
  static inline std::vector<std::string> log;
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double scale) {
    log.emplace_back("forward");
    ctx->saved_data["scale"] = scale;
    ctx->save_for_backward({x});
    return x * scale;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    log.emplace_back("backward");
    CHECK(ctx->get_saved_variables()[0].defined());
    return {grads[0] * ctx->saved_data["scale"].toDouble(), at::Tensor()};
  }
};

}  // namespace

TEST_CASE("A function's context reaches its backward", "[backend][native_op][results]") {
  for (const Policy policy : kPolicies) {
    check_as_plain(
        [&](const at::Tensor& x) { return op<Scales>("a", policy)(x.sin(), 3.0).exp(); });
  }
}

TEST_CASE("A replay comes before any backward inside the region", "[backend][native_op][results]") {
  const auto fn = [](const at::Tensor& x) {
    Scales::log.emplace_back("body");
    return op<Scales>("b", Policy::kRecompute)(op<Scales>("a", Policy::kSave)(x.sin(), 2.0), 3.0);
  };
  const at::Tensor y = checkpoint()(fn)(step_input());
  Scales::log.clear();
  y.sum().backward();
  CHECK(Scales::log == std::vector<std::string>{"body", "forward", "backward", "backward"});
}

TEST_CASE("A handle may record several results", "[backend][native_op][results]") {
  check_as_plain([](const at::Tensor& x) {
    variable_list both = SinCos::apply(x.exp());
    const NameScope second("second");
    const variable_list others = SinCos::apply(both[0]);
    return (both[1].t() * others[0]).exp() * others[1].t();
  });
}

TEST_CASE("Each tensor of a SAVE call has its own fate", "[backend][native_op][lifetime]") {
  const auto call = [](const at::Tensor& t) { return t.sin().cos(); };
  const at::Tensor y = checkpoint({.name = "r"})([&](const at::Tensor& x) {
    const at::Tensor a = save("a", call)(x.cos());
    return save("b", [](const at::Tensor& t) { return t + 1; })(a).exp();
  })(step_input());
  const MemoryReport report = memory_report();
  INFO(report.str());
  // x.cos() runs again, sin's result stays, a goes; b stays for the bare exp.
  REQUIRE(report.regions.size() == 1);
  std::vector<std::string> names;
  for (const MemoryRow& row : report.regions[0].rows) {
    if (row.bytes > 0) names.push_back(row.name);
  }
  CHECK(names == std::vector<std::string>{"a: saved.1", "b: result"});
  y.sum().backward();
}

TEST_CASE("Results of every kind come back with their types", "[backend][native_op][results]") {
  for (const Policy policy : kPolicies) {
    INFO(policy_name(policy));
    check_as_plain([&](const at::Tensor& x) {
      const auto vector = native_op(
          [](const at::Tensor& t) {
            return std::vector{t.sin(), t.cos()};
          },
          "vector", policy)(x);
      const std::pair<at::Tensor, std::array<at::Tensor, 2>> pair = native_op(
          [](const at::Tensor& t) {
            return std::pair(t.sin(), std::array{t.cos(), t.exp()});
          },
          "pair", policy)(x);
      const std::optional<at::Tensor> some =
          native_op([](const at::Tensor& t) { return std::optional(t.sin()); }, "some", policy)(x);
      const std::optional<at::Tensor> none = native_op(
          [](const at::Tensor& /*t*/) { return std::optional<at::Tensor>(); }, "none", policy)(x);
      const Pair own = native_op(
          [](const at::Tensor& t) {
            return Pair{t.sin(), {t.exp(), t.cos()}, 3};
          },
          "struct", policy)(x);
      const std::tuple<at::Tensor, at::Tensor> undefined =
          native_op([](const at::Tensor& t) { return std::tuple(at::Tensor(), t.exp()); },
                    "undefined", policy)(x);
      CHECK_FALSE(none);
      CHECK(own.count == 3);
      CHECK(own.parts.size() == 2);
      CHECK_FALSE(std::get<0>(undefined).defined());
      return (vector.at(1) + pair.second[1] + some.value() + own.parts[0] * own.count +
              std::get<1>(undefined))
          .exp();
    });
  }
}

TEST_CASE("A call may return nothing", "[backend][native_op][results]") {
  for (const Policy policy : kPolicies) {
    int runs = 0;
    const auto call = [&](at::Tensor& t) {
      ++runs;
      t.mul_(2);
    };
    const auto fn = [&](const at::Tensor& x) {
      at::Tensor h = x.sin();
      native_op(call, "a", policy)(h);
      return h.exp();
    };
    step(checkpoint()(fn));
    CHECK(runs == (policy == Policy::kSave ? 1 : 2));
    check_as_plain(fn);
  }
}

TEST_CASE("A result that nobody reads again is a placeholder in the replay",
          "[backend][native_op][placeholder]") {
  std::vector<bool> seen;
  const auto fn = [&](const at::Tensor& x) {
    const at::Tensor h = save("a", [](const at::Tensor& t) { return t.exp() + 1; })(x.sin());
    const at::Tensor kept = save("b", sin_of)(x);
    seen.insert(seen.end(), {is_placeholder(h), is_placeholder(h.detach()), is_placeholder(h.t()),
                             is_placeholder(kept), is_placeholder(x)});
    return save("c", exp_of)(h) * kept;
  };
  step(checkpoint()(fn));
  CHECK(seen ==
        std::vector<bool>{false, false, false, false, false, true, true, true, false, false});
  check_as_plain(fn);
}

TEST_CASE("A placeholder has the metadata of what it stands for",
          "[backend][native_op][placeholder]") {
  for (const bool read : {false, true}) {  // a value that is kept has it too
    std::vector<bool> placeholders;
    const auto call = [](const at::Tensor& t) { return (t.exp() + 1).t().to(at::kDouble); };
    const auto fn = [&](const at::Tensor& x) {
      const at::Tensor h = save("a", call)(x.sin());
      CHECK(h.sizes() == at::IntArrayRef{8, 4});
      CHECK(h.strides() == at::IntArrayRef{1, 8});
      CHECK(h.scalar_type() == at::kDouble);
      CHECK(h.device().is_cpu());
      CHECK(h.requires_grad());
      CHECK_FALSE(h.is_leaf());
      const at::Tensor view = h.view({2, 4, 4}).narrow(1, 1, 2);
      CHECK(view.storage_offset() == 1);
      CHECK(view.sizes() == at::IntArrayRef{2, 2, 4});
      placeholders.push_back(is_placeholder(h));
      const at::Tensor bare = read ? h.sin().t().to(at::kFloat) : x.cos();
      return save("b", [](const at::Tensor& t) { return t.t().to(at::kFloat).exp(); })(h) *
             bare.exp();
    };
    step(checkpoint()(fn));
    CHECK(placeholders == std::vector<bool>{false, !read});
    check_as_plain(fn);
  }
}

TEST_CASE("A pointer to a placeholder's data raises in the replay, with call and region",
          "[backend][native_op][placeholder]") {
  const std::vector<std::function<void(const at::Tensor&)>> readers{
      [](const at::Tensor& t) { (void)t.data_ptr(); },
      [](const at::Tensor& t) { (void)t.const_data_ptr<float>(); },
      [](const at::Tensor& t) { (void)t.t().narrow(0, 1, 2).data_ptr(); },
      [](const at::Tensor& t) { (void)t.accessor<float, 2>()[0][0]; },
      [](const at::Tensor& t) { (void)t.storage().data(); }};
  for (const auto& read : readers) {
    const auto fn = [&](const at::Tensor& x) {
      const at::Tensor h = save("a", [](const at::Tensor& t) { return t + 1; })(x);
      read(h);
      return x.exp();
    };
    const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
    CHECK_THAT(error_text([&] { y.sum().backward(); }),
               ContainsSubstring("[placeholder] slot 'a' (SAVE) of region 'r': expected a use of "
                                 "its shape only, got a read of its memory"));
  }
}

TEST_CASE("A bare op may read a result, a view of it, or a view of that view",
          "[backend][native_op][results]") {
  const auto call = [](const at::Tensor& t) { return t + 1; };
  check_as_plain([&](const at::Tensor& x) { return save("a", call)(x).cos().exp(); });
  check_as_plain([&](const at::Tensor& x) { return save("a", call)(x).t().exp().sin().t(); });
  check_as_plain([&](const at::Tensor& x) {
    const at::Tensor view = save("a", call)(x).t().narrow(0, 2, 3);
    return view.select(0, 1).sin().exp().expand({8, 4}).t() * x.exp();
  });
  check_as_plain([&](const at::Tensor& x) {  // a bare view, for a RECOMPUTE call
    return recompute("b", [](const at::Tensor& t) { return t.sin().exp(); })(
               save("a", call)(x).narrow(1, 2, 3).detach())
               .sum() *
           x.exp();
  });
}

TEST_CASE("A hook on a SAVE call's result fires once, with the right gradient",
          "[backend][native_op][results]") {
  for (const bool read : {false, true}) {
    const auto run = [&](bool checkpointed) {
      Tensors hooked;
      const auto fn = [&, read](const at::Tensor& x) {
        const at::Tensor h = save("a", [](const at::Tensor& t) { return t.exp() + 1; })(x.sin());
        h.register_hook([&](const at::Tensor& grad) { hooked.push_back(grad.clone()); });
        return read ? h.cos().exp() : save("b", exp_of)(h) * x.cos().exp();
      };
      Tensors all = checkpointed ? step(checkpoint()(fn)) : step(fn);
      CHECK(hooked.size() == 1);
      all.insert(all.end(), hooked.begin(), hooked.end());
      return all;
    };
    check_same(run(true), run(false));
  }
}

TEST_CASE("One tensor at two positions is one tensor in the replay",
          "[backend][native_op][results]") {
  int same = 0;
  check_as_plain([&](const at::Tensor& x) {
    const auto twice = [](const at::Tensor& t) {
      const at::Tensor h = t + 1;
      return std::tuple(h, h);
    };
    const auto [a, b] = save("a", twice)(x);
    same += a.is_same(b) ? 1 : 0;
    return a.sin().exp() * save("b", exp_of)(b);
  });
  CHECK(same == 3);  // forward, replay, plain
}

TEST_CASE("Results alias each other in the replay as in the forward",
          "[backend][native_op][results]") {
  int aliases = 0;
  check_as_plain([&](const at::Tensor& x) {
    const auto base_and_view = [](const at::Tensor& t) {
      const at::Tensor h = t + 1;
      return std::tuple(h, h.narrow(0, 1, 2).detach());
    };
    const auto [base, view] = save("a", base_and_view)(x);
    aliases += base.is_alias_of(view) ? 1 : 0;
    return (base.sin() * view.sum()).exp();
  });
  CHECK(aliases == 3);
}

TEST_CASE("A SAVE call may return an argument or a view of one", "[backend][native_op][results]") {
  const auto check = [](const auto& call) {
    check_as_plain([&](const at::Tensor& x) {  // of a recomputed tensor, of a result, of the input
      const at::Tensor a = save("a", call)(x.sin());
      const at::Tensor b = save("b", call)(save("c", exp_of)(x));
      return (a.exp() * b.cos()).exp() * save("d", call)(x).exp();
    });
  };
  check([](const at::Tensor& t) { return t; });
  check([](const at::Tensor& t) { return t.narrow(0, 1, 2); });
  check([](const at::Tensor& t) { return t.t().narrow(1, 1, 1); });
  check([](const at::Tensor& t) { return t.view_as(t); });
}

TEST_CASE("Results without elements and of integers come back", "[backend][native_op][results]") {
  for (const Policy policy : kPolicies) {
    check_as_plain([&](const at::Tensor& x) {
      const auto call = [](const at::Tensor& t) {
        return std::tuple(t.narrow(0, 0, 0).exp(), t.argmax(1), t > 0, t.sum());
      };
      const auto [empty, index, mask, sum] = native_op(call, "a", policy)(x.sin());
      const at::Tensor picked = x.exp().gather(1, index.unsqueeze(1)).masked_fill(mask, 0.5);
      return picked * sum + at::cat({empty, x.cos()}).exp();
    });
  }
}

TEST_CASE("What a SAVE call saves of its argument may be any view of it",
          "[backend][native_op][results]") {
  const std::vector<TensorFn> views{
      [](const at::Tensor& t) { return t.view_as(t); },
      [](const at::Tensor& t) { return t.narrow(1, 2, 3); },
      [](const at::Tensor& t) { return t.t(); },
      [](const at::Tensor& t) { return t.narrow(0, 1, 2).t().narrow(0, 1, 2); },
      [](const at::Tensor& t) { return t.narrow(0, 0, 0); },
      [](const at::Tensor& t) {
        return t.expand({2, 4, 8});
      }};
  for (const TensorFn& view : views) {
    const auto call = [&](const at::Tensor& t) {
      return view(t).pow(2).sum() + view(t).sin().sum();
    };
    check_as_plain([&](const at::Tensor& x) { return (save("a", call)(x.cos()) * x).exp(); });
    // Of an argument that is not contiguous.
    check_as_plain([&](const at::Tensor& x) {
      return (save("a", call)(x.cos().t().contiguous().t()) * x).exp();
    });
  }
}

TEST_CASE("A view of another dtype that a SAVE call saves of its argument is as plain",
          "[backend][native_op][results]") {
  const auto call = [](const at::Tensor& t) {
    return at::view_as_complex(t.view({4, 4, 2})).pow(2).abs();
  };
  check_as_plain([&](const at::Tensor& x) { return (save("a", call)(x.cos()).sum() * x).exp(); });
}

TEST_CASE("An argument that comes back with other strides raises, if a view of it was saved",
          "[backend][native_op][results]") {
  bool changed = false;
  const auto call = [](const at::Tensor& t) { return t.narrow(1, 2, 3).pow(2); };
  const auto fn = [&](const at::Tensor& x) {
    const at::Tensor h = x.cos();
    return save("a", call)(changed ? h.t().contiguous().t() : h).sum() * x.exp();
  };
  const at::Tensor y =
      checkpoint({.name = "r", .determinism = Determinism::kNone})(fn)(step_input());
  changed = true;
  CHECK_THAT(
      error_text([&] { y.sum().backward(); }),
      ContainsSubstring("[replay] region 'r', call 'a' (SAVE)") && ContainsSubstring("strides"));
}

TEST_CASE("A SAVE call may not return a new leaf or a parameter; a RECOMPUTE call may",
          "[backend][native_op][results]") {
  const at::Tensor w = torch::ones({4, 8}).requires_grad_();
  const auto new_leaf = [](const at::Tensor& t) { return at::ones_like(t).requires_grad_(); };
  const auto weight = [&](const at::Tensor& /*t*/) { return w; };
  for (const TensorFn& call : {TensorFn(new_leaf), TensorFn(weight)}) {
    CHECK_THAT(error_text([&] {
                 checkpoint({.name = "r"})(
                     [&](const at::Tensor& x) { return save("a", call)(x) * x; })(step_input());
               }),
               ContainsSubstring("[checkpoint] region 'r', call 'a' (SAVE), result 0") &&
                   ContainsSubstring("got a leaf that requires grad"));
    check_as_plain([&](const at::Tensor& x) { return (recompute("a", call)(x) * x).exp(); }, {w});
  }
  check_as_plain(  // an argument that is a leaf
      [&](const at::Tensor& x) {
        return (save("a", [](const at::Tensor& t) { return t; })(w) * x).exp();
      },
      {w});
}

TEST_CASE("A tensor that a SAVE call kept may not be written before backward",
          "[backend][native_op][in_place]") {
  SECTION("one that autograd saved in it") {
    at::Tensor leaked;
    const auto fn = [&](const at::Tensor& x) {
      return save("a", [&](const at::Tensor& t) { return leaked = t.sin(), leaked.cos(); })(x);
    };
    const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
    leaked.detach().mul_(2);
    CHECK_THAT(error_text([&] { y.sum().backward(); }),
               ContainsSubstring("modified by an inplace operation: [float32 [4, 8] on cpu") &&
                   ContainsSubstring("region 'r', call 'a' (SAVE), tensor 'saved."));
  }
  SECTION("its result, kept for a bare op") {
    at::Tensor leaked;
    const auto fn = [&](const at::Tensor& x) {
      leaked = save("a", [](const at::Tensor& t) { return t + 1; })(x);
      return leaked.cos() + x.exp();
    };
    const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
    leaked.detach().mul_(2);
    CHECK_THAT(
        error_text([&] { y.sum().backward(); }),
        ContainsSubstring("modified by an inplace operation") && ContainsSubstring("region 'r'"));
  }
}

TEST_CASE("A function that writes its argument and saves it gets the new value",
          "[backend][native_op][in_place]") {
  for (const Policy policy : kPolicies) {
    check_as_plain([&](const at::Tensor& x) {
      const at::Tensor h = x.sin();
      const at::Tensor y = op<DoublesInPlace>("a", policy)(h);
      return y.exp() * save("b", exp_of)(y);
    });
  }
}

TEST_CASE("Calls with gradients off stay out of the gradient", "[backend][native_op][no_grad]") {
  for (const Policy policy : kPolicies) {
    int runs = 0;
    const auto call = [&](const at::Tensor& t) { return ++runs, t.sin().exp(); };
    SECTION(std::string("a block in the call: ") + policy_name(policy)) {
      check_as_plain([&](const at::Tensor& x) {
        const auto partly = [](const at::Tensor& t) {
          const at::Tensor grown = t.exp();
          const torch::NoGradGuard no_grad;
          return grown + t.cos();
        };
        const auto in_part = [](const at::Tensor& t) {
          at::Tensor scale;
          {
            const torch::NoGradGuard no_grad;
            scale = t.cos();
          }
          return t.exp() * scale;
        };
        const at::Tensor a = native_op(partly, "a", policy)(x);
        return native_op(in_part, "b", policy)(x).sin() * a;
      });
    }
    SECTION(std::string("the whole call: ") + policy_name(policy)) {
      const auto fn = [&](const at::Tensor& x) {
        at::Tensor scale;
        {
          const torch::NoGradGuard no_grad;
          scale = native_op(call, "a", policy)(x.cos());
        }
        CHECK_FALSE(scale.requires_grad());
        return save("b", [](const at::Tensor& t, const at::Tensor& s) { return t.sin() * s; })(
                   x.exp(), scale)
            .exp();
      };
      step(checkpoint()(fn));
      CHECK(runs == (policy == Policy::kSave ? 1 : 2));
      check_as_plain(fn);
    }
  }
}

TEST_CASE("Where nothing is recorded named calls are plain", "[backend][native_op][no_grad]") {
  int runs = 0;
  const auto call = [&](const at::Tensor& t) { return ++runs, t.sin().exp(); };
  auto region_fn = checkpoint()(
      [&](const at::Tensor& x) { return recompute("b", call)(save("a", call)(x)).cos(); });
  SECTION("no_grad") {
    const torch::NoGradGuard no_grad;
    CHECK_FALSE(region_fn(step_input()).requires_grad());
    CHECK(memory_report().regions.empty());
  }
  SECTION("inference") {
    const c10::InferenceMode inference;
    CHECK_FALSE(region_fn(at::ones({2})).requires_grad());
  }
  SECTION("nothing requires grad") {
    const at::Tensor y = region_fn(at::ones({2}));
    CHECK_FALSE(y.requires_grad());
    CHECK(memory_report().bytes == 0);
  }
  CHECK(runs == 2);
}

TEST_CASE("A graph that is built under enable_grad in a region that records nothing is plain",
          "[backend][native_op][no_grad]") {
  int runs = 0;
  const auto call = [&](const at::Tensor& t) { return ++runs, t.sin().exp(); };
  const auto fn = [&](const at::Tensor& x) {
    const at::AutoGradMode enable(true);
    return save("a", call)(x).cos();
  };
  const at::Tensor x = step_input();
  at::Tensor y;
  {
    const torch::NoGradGuard no_grad;
    y = checkpoint()(fn)(x);
  }
  y.sum().backward();
  CHECK(runs == 1);
  CHECK(same_bits(x.grad(), torch::autograd::grad({fn(x).sum()}, {x})[0]));
}

TEST_CASE("A weight that is used in several ways has the gradient of plain",
          "[backend][native_op][tied]") {
  const at::Tensor w = (torch::arange(64, at::kFloat) / 64).view({8, 8}).requires_grad_();
  const auto times = [](const at::Tensor& t, const at::Tensor& weight) { return t.matmul(weight); };
  for (const Policy first : kPolicies) {
    for (const Policy second : kPolicies) {
      INFO(policy_name(first) << ", " << policy_name(second));
      check_as_plain(  // closed over, and its transpose
          [&](const at::Tensor& x) {
            const auto there = [&](const at::Tensor& t) { return t.matmul(w).tanh(); };
            const auto back = [&](const at::Tensor& t) { return t.matmul(w.t()); };
            return native_op(back, "b", second)(native_op(there, "a", first)(x.sin())).exp();
          },
          {w});
      check_as_plain(  // as arguments, one a bare view; used bare and outside too
          [&](const at::Tensor& x) {
            const at::Tensor h = native_op(times, "a", first)(x.sin(), w);
            const at::Tensor y = native_op(times, "b", second)(h.tanh(), w.t());
            return (y.matmul(w) * w.sum()).tanh();
          },
          {w});
      check_as_plain(  // the same tensor twice, and its square
          [&](const at::Tensor& x) {
            const auto both = [](const at::Tensor& t, const at::Tensor& a, const at::Tensor& b) {
              return t.matmul(a).matmul(b) + t.matmul(a * b);
            };
            return native_op(both, "a", first)(native_op(times, "b", second)(x, w), w, w).tanh();
          },
          {w});
    }
  }
}

TEST_CASE("A tied weight in two regions, and frozen", "[backend][native_op][tied]") {
  const at::Tensor w = (torch::arange(64, at::kFloat) / 64).view({8, 8}).requires_grad_();
  const auto project = [&](const at::Tensor& t) { return t.matmul(w).tanh(); };
  const auto block = [&](const at::Tensor& x) { return save("a", project)(x.sin()).exp(); };
  const TensorFn two = [&](const at::Tensor& x) {
    return checkpoint()(block)(checkpoint()(block)(x));
  };
  const TensorFn plain = [&](const at::Tensor& x) { return block(block(x)); };
  check_same(step(two, {w}), step(plain, {w}));
  w.set_requires_grad(false);
  check_same(step(two), step(plain));
}

TEST_CASE("A kept graph gives the same gradients again", "[backend][native_op][twice]") {
  const at::Tensor w = (torch::arange(64, at::kFloat) / 64).view({8, 8}).requires_grad_();
  const auto fn = [&](const at::Tensor& x) {
    const auto project = [&](const at::Tensor& t) { return t.narrow(0, 0, 4).matmul(w).exp(); };
    const at::Tensor h = save("a", project)(x.sin());  // an own output, a view of an argument
    return recompute("b", exp_of)(save("c", sin_of)(h.tanh())) * h;
  };
  const Tensors expected = step(fn, {w});
  w.mutable_grad() = at::Tensor();
  const at::Tensor x = step_input();
  const at::Tensor y = checkpoint()(fn)(x);
  const at::Tensor loss = (y * y.detach()).sum();
  SECTION("by backward") {
    for (const bool retain : {true, true, false}) {
      x.mutable_grad() = w.mutable_grad() = at::Tensor();
      loss.backward({}, retain);
      check_same({y.detach(), x.grad(), w.grad()}, expected);
    }
  }
  SECTION("by grad, of all and of one") {
    const Tensors first = torch::autograd::grad({loss}, {x, w}, {}, /*retain_graph=*/true);
    check_same(first, {expected[1], expected[2]});
    check_same(torch::autograd::grad({loss}, {w}, {}, /*retain_graph=*/true), {expected[2]});
    check_same(torch::autograd::grad({loss}, {x}), {expected[1]});
  }
}

TEST_CASE("Double backward passes named calls", "[backend][native_op][twice]") {
  const auto cube = [](const at::Tensor& t) { return t.pow(3) * t.exp(); };
  for (const Policy policy : kPolicies) {
    INFO(policy_name(policy));
    const auto second = [&](bool checkpointed) {
      const auto fn = [&](const at::Tensor& x) {
        return native_op(cube, "b", policy)(save("a", cube)(x.sin())).exp();
      };
      const at::Tensor x = step_input();
      const at::Tensor y = checkpointed ? checkpoint()(fn)(x) : fn(x);
      const at::Tensor grad =
          torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, true)[0];
      return torch::autograd::grad({grad.pow(2).sum()}, {x})[0];
    };
    CHECK(same_bits(second(true), second(false)));
  }
}

TEST_CASE("A custom function may ask twice for what it saved", "[backend][native_op][twice]") {
  for (const Policy policy : kPolicies) {
    check_as_plain(
        [&](const at::Tensor& x) { return op<ReadsTwice>("a", policy)(x.sin()).tanh().exp(); });
  }
}

TEST_CASE("A call that saves its own result makes no cycle", "[backend][native_op][lifetime]") {
  const SavedTensorsHooks same{
      .pack = [](const at::Tensor& t) -> std::any { return t; },
      .unpack = [](const std::any& t) { return std::any_cast<at::Tensor>(t); }};
  const std::vector<CheckpointOptions> all{
      {}, {.saved_tensors_hooks = same}, {.offload_store = host_memory_store()}};
  for (const CheckpointOptions& options : all) {
    const at::Tensor x = step_input();
    const MemoryMeter meter;
    {
      const at::Tensor y = checkpoint(options)([&](const at::Tensor& t) {
        const Policy policy = options.offload_store ? Policy::kOffload : Policy::kSave;
        return op<SavesOutput>("b", policy)(native_op(exp_of, "a", policy)(t.sin()));
      })(x);
      CHECK(meter.current_bytes() > 0);
    }
    CHECK(meter.current_bytes() == 0);
  }
}

TEST_CASE("Results that nobody needs are freed with the function",
          "[backend][native_op][lifetime]") {
  const at::Tensor x = step_input();
  const MemoryMeter meter;
  const auto two = [](const at::Tensor& t) { return std::tuple(t + 1, t + 2); };
  const at::Tensor y = checkpoint()([&](const at::Tensor& t) {
    const auto [main, aux] = save("a", two)(t);
    return save("b", [](const at::Tensor& h) { return h + 3; })(main);
  })(x);
  CHECK(meter.current_bytes() == static_cast<int64_t>(y.nbytes()));
  CHECK(memory_report().regions.empty());  // nothing to replay: the argument is let go as well
}

TEST_CASE("After one backward nothing is held", "[backend][native_op][lifetime]") {
  const at::Tensor x = step_input();
  const auto fn = [](const at::Tensor& t) {
    return recompute("b", exp_of)(save("a", exp_of)(t.sin())).cos();
  };
  const MemoryMeter meter;
  const at::Tensor loss = checkpoint()(fn)(x).sum();
  loss.backward();
  CHECK(memory_report().regions.empty());
  x.mutable_grad() = at::Tensor();
  CHECK(meter.current_bytes() == static_cast<int64_t>(loss.nbytes()));
}

TEST_CASE("Reading a result outside starts no replay", "[backend][native_op][lifetime]") {
  int runs = 0;
  const at::Tensor y = checkpoint()([&](const at::Tensor& x) {
    ++runs;
    return save("a", sin_of)(x.exp()).tanh();
  })(step_input());
  CHECK(y.sum().item<float>() != 0);
  CHECK(runs == 1);
}

}  // namespace remat
