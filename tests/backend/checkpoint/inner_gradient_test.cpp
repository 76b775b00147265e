// SPDX-License-Identifier: BSD-3-Clause

// Gradients and writes inside a region that reach captured tensors. Random programs found most of
// these cases.
#include <torch/torch.h>

#include <algorithm>
#include <any>
#include <functional>
#include <string>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/error_text.h"
#include "support/named_step.h"

namespace remat {
namespace {

using torch::autograd::grad;

/// Returns a region of `fn`, checkpointed or plain. A Step makes its regions with one of these.
using RegionMaker = std::function<TensorFn(const std::string& name, const TensorFn& fn)>;
using Step = std::function<at::Tensor(const at::Tensor& x, const RegionMaker& region)>;

RegionMaker plain() {
  return [](const std::string&, const TensorFn& fn) { return fn; };
}

RegionMaker checkpointed(const CheckpointOptions& options = {}) {
  return [options](const std::string& name, const TensorFn& fn) {
    CheckpointOptions named = options;
    named.name = name;
    return TensorFn(checkpoint(named)(fn));
  };
}

void check_gradients_as_plain(const Step& of, const CheckpointOptions& options = {}) {
  const auto run = [&](const RegionMaker& region) {
    torch::manual_seed(3);
    return step([&](const at::Tensor& x) { return of(x, region); });
  };
  check_same(run(checkpointed(options)), run(plain()));
}

at::Tensor inner_gradient(const at::Tensor& of) {
  const at::Tensor x = of.requires_grad() ? of : of.detach().requires_grad_();
  return grad({(x.sin() * x).sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
}

at::Tensor with_inner_backward(const at::Tensor& of) {
  const at::Tensor x = of.detach().requires_grad_();
  (x * 3).sin().sum().backward();
  return of + x.grad();
}

TEST_CASE("A gradient inside a region begins at the value that the region has written",
          "[backend][inner_gradient]") {
  const auto check = [](const std::function<void(at::Tensor)>& write) {
    const Step of = [&](const at::Tensor& x, const RegionMaker& region) {
      const at::Tensor h = x * 1.5;
      return region("r", [=](const at::Tensor& t) {
        write(h);
        return (inner_gradient(h) * t).sin();
      })(x);
    };
    check_gradients_as_plain(of);
    check_gradients_as_plain(of, {.determinism = Determinism::kNone});
  };
  check([](at::Tensor h) { h.mul_(0.7); });
  check([](at::Tensor h) { at::_foreach_mul_({h}, 0.7); });
  check([](const at::Tensor& h) { h.select(0, 1).mul_(1.1); });
  check([](const at::Tensor& h) { h.t().narrow(0, 1, 2).sin_(); });
}

TEST_CASE("Writes to captured tensors and their views bring the same tensors into the graph",
          "[backend][inner_gradient]") {
  const auto check = [](const std::function<at::Tensor(const at::Tensor&, const at::Tensor&,
                                                       const at::Tensor&)>& fn) {
    const Step of = [&](const at::Tensor& x, const RegionMaker& region) {
      const at::Tensor base = at::ones({4, 8}) * 0.3;
      const at::Tensor view = base.t();
      return region("r", [=](const at::Tensor& t) { return fn(t, base, view); })(x);
    };
    check_gradients_as_plain(of);
    check_gradients_as_plain(of, {.determinism = Determinism::kNone});
  };
  check([](const at::Tensor& t, const at::Tensor& base, const at::Tensor& view) {
    view.copy_(t.t());
    return torch::dropout(base, 0.3, true).sin();
  });
  check([](const at::Tensor& t, const at::Tensor& base, const at::Tensor& view) {
    base.mul_(t);
    return view.sin().t() * inner_gradient(base);
  });
}

TEST_CASE("A detached alias may be written before its original is read",
          "[backend][inner_gradient]") {
  check_gradients_as_plain([](const at::Tensor& x, const RegionMaker& region) {
    const at::Tensor h = x * 1.5;
    const at::Tensor alias = h.detach();
    return region("r", [=](at::Tensor) {
      alias.mul_(0.5);
      return at::_foreach_mul({h, alias}, 0.7)[0].sin();
    })(x);
  });
}

TEST_CASE("A SAVE call may bring its argument into the graph", "[backend][inner_gradient]") {
  const auto write = [](at::Tensor to, const at::Tensor& from) {
    to.narrow(0, 1, 2).copy_(from.narrow(0, 0, 2));
    return from.clone();
  };
  check_gradients_as_plain(
      [&](const at::Tensor& x, const RegionMaker& region) {  // the buffer is not read again
        const at::Tensor buffer = at::ones({4, 8});
        return region("r", [=](const at::Tensor& t) {
          return save("call", write)(buffer, t).sin() * t.cos();
        })(x);
      });
  check_gradients_as_plain(
      [&](const at::Tensor& x, const RegionMaker& region) {  // an alias of a tensor in the graph
        const at::Tensor h = x * 1.5;
        return region("r", [=](const at::Tensor& t) {
          const at::Tensor alias = h.detach();
          save("call", write)(alias, t);
          return alias.sin() * t.cos();
        })(x);
      });
}

TEST_CASE("Calls and regions inside see what a replay around puts in place of a written tensor",
          "[backend][inner_gradient]") {
  check_gradients_as_plain([](const at::Tensor& x, const RegionMaker& region) {
    const at::Tensor h = x * 1.5;
    return region("outer", [=](const at::Tensor& t) {
      h.select(0, 1).mul_(1.1);
      return region("inner", [=](const at::Tensor& s) {
        const auto parts = save("parts", [](const at::Tensor& a) {
          return std::tuple(a.narrow(0, 1, 2), a, a.detach());
        })(h);
        return with_inner_backward(h).sin() * std::get<1>(parts).sum() * s;
      })(t);
    })(x);
  });
}

TEST_CASE("A backward inside sees the value of a written tensor that a policy SAVEs",
          "[backend][inner_gradient]") {
  check_gradients_as_plain(
      [](const at::Tensor& x, const RegionMaker& region) {
        const at::Tensor h = x * 1.5;
        return region("r", [=](const at::Tensor& t) {
          h.add_(h);
          return with_inner_backward(h).sin() * t;
        })(x);
      },
      {.determinism = Determinism::kNone,
       .policy = make_policy(PolicyTable().op("tag:view", Policy::kSave))});
}

TEST_CASE("An OFFLOAD call may take gradients, in a region inside a region",
          "[backend][inner_gradient]") {
  const at::Tensor buffer = at::ones({4, 8});
  const Step of = [&](const at::Tensor& x, const RegionMaker& region) {
    buffer.fill_(1);
    return region("outer", [&](const at::Tensor& t) {
      const at::Tensor h = t * 1.5;
      return region("inner", [&](const at::Tensor& s) {
        const at::Tensor kept = native_op([](const at::Tensor& a) { return inner_gradient(a); },
                                          "call", Policy::kOffload)(s);
        at::Tensor(buffer).mul_(0.5);
        return s.sin() * kept * buffer;
      })(h);
    })(x);
  };
  check_gradients_as_plain(of, {.offload_store = host_memory_store()});
}

TEST_CASE("A SAVE call's result counts as outside in a nested region that runs a backward",
          "[backend][inner_gradient]") {
  check_gradients_as_plain([](const at::Tensor& x, const RegionMaker& region) {
    return region("outer", [=](const at::Tensor& t) {
      const at::Tensor kept = save("clone", [](const at::Tensor& a) { return a.clone(); })(t);
      const at::Tensor copy = kept.clone();
      const at::Tensor y = region("inner", [=](const at::Tensor&) {
        const at::Tensor weight = with_inner_backward(copy);
        return save("norm", [=](const at::Tensor& a, const at::Tensor& b) {
          return torch::layer_norm(b, {8}) * a;
        })(weight, kept);
      })(copy);
      return with_inner_backward(y) * y.sin();
    })(x);
  });
}

TEST_CASE("A region whose tape was given up is replayed as its forward ran",
          "[backend][inner_gradient][tape]") {
  const auto first = [](const at::Tensor& a) { return a; };
  const Step of = [&](const at::Tensor& x, const RegionMaker& region) {
    return region("gives up", [=](const at::Tensor& t) {
      const at::Tensor y = region("gives up inside", [=](const at::Tensor& s) {
        const at::Tensor same = native_op(first, "for all", Policy::kSave,
                                          Keep::kAllRegions)(s);  // no tape can hold it
        const at::Tensor copy = save("clone", [](const at::Tensor& a) { return a.clone(); })(same);
        return checkpoint({.name = "innermost"})([=](const at::Tensor&) { return s * 2; })(copy);
      })(t);
      return with_inner_backward(y).sin();
    })(x);
  };
  check_gradients_as_plain(of, {.replay = ReplayEngine::kAuto});
  check_gradients_as_plain(of, {.replay = ReplayEngine::kAuto});  // now no tape is recorded
}

// Found by the C++ suite backend.fuzz (tests/fuzz), programs 321532, 403720; so was the next.
TEST_CASE("A SAVE call leaves its argument to the replay, tape given up or not",
          "[backend][inner_gradient][tape]") {
  const auto kept_by_call = [](ReplayEngine engine) {
    std::vector<SavedTensorKind> kinds;
    const SavedTensorsHooks hooks = {
        .pack = [&](const at::Tensor& tensor) -> std::any {
          kinds.push_back(current_saved_tensor_info().kind);
          return tensor.clone();
        },
        .unpack = [](const std::any& kept) { return std::any_cast<at::Tensor>(kept); }};
    step([&](const at::Tensor& x) {
      return checkpoint({.name = "r", .replay = engine, .saved_tensors_hooks = hooks})(
          [](const at::Tensor& t) {
            const at::Tensor mid = with_inner_backward(t).tanh();
            return save("sin", [](const at::Tensor& a) { return a.sin(); })(mid).cos();
          })(x);
    });
    return std::count(kinds.begin(), kinds.end(), SavedTensorKind::kBackward);
  };
  CHECK(kept_by_call(ReplayEngine::kFunction) == 0);
  CHECK(kept_by_call(ReplayEngine::kAuto) == 0);
}

TEST_CASE("An outer region sees the same of a region inside with its tape and without",
          "[backend][inner_gradient][tape]") {
  const Step of = [](const at::Tensor& x, const RegionMaker& region) {
    const at::Tensor weight = at::full({4, 8}, 0.7).requires_grad_();
    const at::Tensor y = region("outer", [=](const at::Tensor& t) {
      return region("inner", [=](const at::Tensor& s) {
        const at::Tensor kept =
            native_op([](const at::Tensor& a) { return a.sin().cos().exp().sin(); }, "for all",
                      Policy::kSave, Keep::kAllRegions)(s);
        return save("backward", [=](const at::Tensor& a) {
          const at::Tensor leaf = a.detach().requires_grad_();
          (leaf * weight).sin().sum().backward();
          return a + leaf.grad();
        })(kept.tanh());
      })(t);
    })(x);
    return y * weight.grad();
  };
  check_gradients_as_plain(of, {.replay = ReplayEngine::kAuto});
  check_gradients_as_plain(of, {.replay = ReplayEngine::kFunction});
}

// Found by the C++ suite backend.fuzz (tests/fuzz), program 170283.
TEST_CASE("A backward inside a SAVE call gets tensors that existed before",
          "[backend][inner_gradient]") {
  const auto check = [](const Step& of) {
    for (const ReplayEngine engine : {ReplayEngine::kFunction, ReplayEngine::kAuto}) {
      check_gradients_as_plain(of, {.replay = engine});
      check_gradients_as_plain(of, {.replay = engine, .policy = make_policy(save_matmuls())});
    }
  };
  const auto run_backward_of = [](const at::Tensor& y) {
    return save("backward", [=](const at::Tensor& a) {
      y.sum().backward({}, /*retain_graph=*/true);
      return a * 2;
    });
  };
  SECTION("a result of the outer region, by an op that does not say that it returns a view") {
    check([](const at::Tensor& x, const RegionMaker& region) {
      return region("outer", [=](const at::Tensor& t) {
        const at::Tensor y = at::_unsafe_view(t.mm(t.t()), {2, 8});
        return region("inner", [=](const at::Tensor& s) {
          return save("backward", with_inner_backward)(s).sum(0) * y;
        })(t);
      })(x);
    });
  }
  SECTION("a captured tensor, by a tape") {
    check([=](const at::Tensor& x, const RegionMaker& region) {
      const at::Tensor v = x * 1.5;
      const at::Tensor y =
          region("first", [=](const at::Tensor& t) { return (t * v).mm(v.t()); })(x);
      return region("second", [=](const at::Tensor& t) { return run_backward_of(y)(t) * v; })(x);
    });
  }
  SECTION("a captured tensor, by an op that is given its storage") {
    check([=](const at::Tensor& x, const RegionMaker& region) {
      const at::Tensor v = x * 1.5;
      const at::Tensor y = region("first", [=](const at::Tensor& t) {
        const at::Tensor same = at::empty({0}).set_(v.detach().storage(), 0, {4, 8});
        return (t * same).sin();
      })(x);
      return region("second", [=](const at::Tensor& t) { return run_backward_of(y)(t) * v; })(x);
    });
  }
  SECTION("a captured tensor, by hooks that have kept it") {
    check([=](const at::Tensor& x, const RegionMaker& region) {
      const at::Tensor v = x * 1.5;
      at::Tensor y;
      {
        const SavedTensorsHooksGuard guard(
            {.pack = [](const at::Tensor& tensor) -> std::any { return tensor; },
             .unpack = [](const std::any& kept) { return std::any_cast<at::Tensor>(kept); }});
        y = x.sin() * v;
      }
      return region("second", [=](const at::Tensor& t) { return run_backward_of(y)(t) * v; })(x);
    });
  }
}

TEST_CASE("A view whose base was written is an argument like any other",
          "[backend][inner_gradient]") {
  check_gradients_as_plain([](const at::Tensor& x, const RegionMaker& region) {
    at::Tensor base = at::ones({4, 8});
    const at::Tensor view = base.view({8, 4});
    base.narrow(0, 1, 2).copy_(x.narrow(0, 0, 2));
    return region("r", [](at::Tensor t) {
      const at::Tensor y = t * 2;
      t.add_(t);
      return (y.sin() * t).view({4, 8});
    })(view);
  });
}

TEST_CASE("A hook that is set after the region does not change a gradient inside unnoticed",
          "[backend][inner_gradient][errors]") {
  const at::Tensor x = step_input();
  const auto fn = [&](const at::Tensor& t) { return inner_gradient(x).sin() * t; };
  {
    const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
    const unsigned hook = x.register_hook([](const at::Tensor& g) { return g * 0.9; });
    CHECK_THAT(error_text([&] { y.sum().backward(); }),
               ContainsSubstring("region 'r'") &&
                   ContainsSubstring("hooks on gradients as in the forward"));
    x.remove_hook(hook);
  }
  CHECK(memory_report().regions.empty());
  const auto gradient_of = [&](const TensorFn& of) {
    x.mutable_grad() = at::Tensor();
    of(step_input()).sum().backward();
    return x.grad();
  };
  x.register_hook([](const at::Tensor& g) { return g * 0.9; });  // called with and without a region
  CHECK(same_bits(gradient_of(checkpoint({.name = "r"})(fn)), gradient_of(fn)));
}

struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * context->get_saved_variables()[0] * 2};
  }
};

TEST_CASE("A gradient inside that would go through the forward's graph raises",
          "[backend][inner_gradient][errors]") {
  const at::Tensor x = step_input();
  const at::Tensor h = x * 1.5;
  const at::Tensor y = checkpoint({.name = "r"})([=](const at::Tensor& t) {
    at::Tensor(h).mul_(0.7);
    return inner_gradient(Square::apply(h)).sin() * t;
  })(x);
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring("region 'r'") && ContainsSubstring("MulBackward") &&
                 ContainsSubstring("reaches the graph of the forward") &&
                 ContainsSubstring("Pass that tensor as an argument"));
}

TEST_CASE("A custom function that saves a tensor too many in the replay is noticed",
          "[backend][inner_gradient][errors]") {
  // The region makes the buffer part of the graph, so that the replay's Square saves it.
  const at::Tensor buffer = at::ones({4, 8});
  const at::Tensor y = checkpoint({.name = "r"})([=](const at::Tensor& t) {
    Square::apply(buffer);
    at::Tensor(buffer).add_(t);
    return t.sin();
  })(step_input() * 2);
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring("region 'r', slot 0") &&
                 ContainsSubstring("It was saved between other ops"));
}

}  // namespace
}  // namespace remat
