// SPDX-License-Identifier: BSD-3-Clause

// Results of named calls: their types, views, placeholders in replays, hooks on results.
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/default_device.h"
#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

struct Pair {
  at::Tensor sum;
  std::vector<at::Tensor> parts;
  int count = 0;  // copied with the struct
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

constexpr std::array kReplayedPolicies{Policy::kSave, Policy::kRecompute};

/// Computes sin and cos with a RematHandle; the sin that it saves is the one it returns.
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

/// Multiplies by a number that it leaves in its context, and records when it runs.
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
  for (const Policy policy : kReplayedPolicies) {
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

TEST_CASE("Results of every kind come back with their types", "[backend][native_op][results]") {
  for (const Policy policy : kReplayedPolicies) {
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
  for (const Policy policy : kReplayedPolicies) {
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
  for (const bool read : {false, true}) {  // if read, h is kept in full
    std::vector<bool> placeholders;
    const auto call = [](const at::Tensor& t) { return (t.exp() + 1).t().to(at::kDouble); };
    const auto fn = [&](const at::Tensor& x) {
      const at::Tensor h = save("a", call)(x.sin());
      CHECK(h.sizes() == at::IntArrayRef{8, 4});
      CHECK(h.strides() == at::IntArrayRef{1, 8});
      CHECK(h.scalar_type() == at::kDouble);
      CHECK(h.device().type() == default_device().type());
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
               ContainsSubstring(
                   "[placeholder] result of call 'a' (SAVE) of region 'r': expected a use of "
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
  CHECK(same == 3);  // in the forward, the replay and the plain run
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
    check_as_plain([&](const at::Tensor& x) {  // views of tensors of each kind
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

TEST_CASE("An argument that a SAVE call returns is no new memory, though no op has seen it",
          "[backend][native_op][results]") {
  // The region captures h and writes it; the replay's inner backward must start from the old h.
  const auto in_region = [](const CheckpointOptions& options, bool remat) {
    return [=](const at::Tensor& x) {
      const at::Tensor h = x * 1.5;
      const auto fn = [=](const at::Tensor& t) {
        const at::Tensor same = save("same", [](const at::Tensor& a) { return a; })(h);
        h.mul_(2);
        const at::Tensor leaf = h.detach().requires_grad_();
        (leaf * leaf).sin().sum().backward();
        return t.sin() * leaf.grad() * same;
      };
      return remat ? checkpoint(options)(fn)(x) : fn(x);
    };
  };
  for (const CheckpointOptions& options :
       {CheckpointOptions{.name = "logged"},
        CheckpointOptions{.name = "not compared", .determinism = Determinism::kNone},
        CheckpointOptions{.name = "automatic", .replay = ReplayEngine::kAuto}}) {
    for (int run = 0; run < 2; ++run)
      check_same(step(in_region(options, true)), step(in_region(options, false)));
  }
}

TEST_CASE("A view that a SAVE call returns is found where hooks bring its argument back",
          "[backend][native_op][results]") {
  const SavedTensorsHooks copying{
      .pack = [](const at::Tensor& t) -> std::any { return t.clone(); },
      .unpack = [](const std::any& t) { return std::any_cast<at::Tensor>(t); }};
  const TensorFn fn = [](const at::Tensor& t) {
    const auto without_first = [](const at::Tensor& h) { return h.narrow(0, 1, h.size(0) - 1); };
    return (save("a", without_first)(t) + 1).sin();
  };
  // Row 2 begins at byte 64, as aligned as new memory, so a copy may begin at offset 0. Row 1
  // begins at byte 32, so its copy gets an offset again.
  const int64_t first = GENERATE(1, 2);
  const auto with_offset = [first](const TensorFn& of) {
    return TensorFn([=](const at::Tensor& x) { return of(x.exp().narrow(0, first, 4 - first)); });
  };
  const CheckpointOptions options{.name = "r", .saved_tensors_hooks = copying};
  check_same(step(with_offset(checkpoint(options)(fn))), step(with_offset(fn)));
}

TEST_CASE("Every replay begins with a result as the call left it, though the function writes it",
          "[backend][native_op][results]") {
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor y = save("a", [](const at::Tensor& t) { return t + 1; })(x);
    return y.mul_(2).sin();
  };
  const auto two_backwards = [](const TensorFn& of) {
    const at::Tensor x = step_input();
    const at::Tensor y = of(x).sum();
    y.backward({}, /*retain_graph=*/true);
    y.backward();
    return x.grad();
  };
  CHECK(same_bits(two_backwards(checkpoint({.name = "r"})(fn)), two_backwards(fn)));
}

TEST_CASE("Results without elements and of integers come back", "[backend][native_op][results]") {
  for (const Policy policy : kReplayedPolicies) {
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

TEST_CASE("A SAVE call may save any view of its argument", "[backend][native_op][results]") {
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
    // A view of an argument that is itself not contiguous.
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

}  // namespace remat
