// SPDX-License-Identifier: BSD-3-Clause

// Tensors that regions with named calls give to saved-tensor hooks and stores.
#include <algorithm>
#include <any>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/default_device.h"
#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

using Log = std::vector<std::string>;

const char* kind_name(SavedTensorKind kind) {
  switch (kind) {
    case SavedTensorKind::kCheckpointInput:
      return "input";
    case SavedTensorKind::kBackward:
      return "backward";
    case SavedTensorKind::kSaveOutput:
      return "output";
  }
  return "?";
}

/// Hooks that keep copies and record the tensors that they pack and unpack.
struct LoggingHooks {
  struct Packed {
    std::string text;
    at::Tensor copy;
  };

  SavedTensorsHooks hooks(const std::string& prefix = "") {
    return {.pack = [this, prefix](const at::Tensor& t) -> std::any {
              const SavedTensorInfo& info = current_saved_tensor_info();
              std::string text = prefix + kind_name(info.kind);
              if (!info.call.empty()) text += " of " + info.call;
              if (const auto* context = std::any_cast<int>(&info.context))
                text += " at " + std::to_string(*context);
              packed.push_back(text);
              regions.push_back(info.region);
              given.push_back(t);
              return Packed{text, t.clone()};
            },
            .unpack =
                [this](const std::any& kept) {
                  const auto& entry = std::any_cast<const Packed&>(kept);
                  unpacked.push_back(entry.text);
                  return entry.copy;
                }};
  }

  Log packed;
  Log unpacked;
  Log regions;
  Tensors given;
};

/// A store that counts puts and gets.
struct CountingStore final : OffloadStore {
  struct Place final : Ticket {
    Place(CountingStore& store, at::Tensor tensor) : store_(store), tensor_(std::move(tensor)) {
      ++store_.held;
    }
    ~Place() override { --store_.held; }
    at::Tensor get() override {
      ++store_.gets;
      return tensor_.clone();
    }

   private:
    CountingStore& store_;
    at::Tensor tensor_;
  };

  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    ++puts;
    sizes.push_back(tensor.sizes().vec());
    CHECK_FALSE(tensor.requires_grad());
    return std::make_shared<Place>(*this, tensor.clone());
  }

  std::vector<std::vector<int64_t>> sizes;  // sizes of the tensors that were put
  int puts = 0;
  int gets = 0;
  int held = 0;
};

/// Saves its weight, which its last op does not read.
struct Project : torch::autograd::Function<Project> {
  static constexpr std::array saved_names{"x", "w"};
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    return x.matmul(w) * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor grad = grads[0] * 2;
    return {grad.matmul(saved[1].t()), saved[0].t().matmul(grad)};
  }
};

/// Project, written with RematHandle.
struct HandleProject : torch::autograd::Function<HandleProject> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w) {
    auto handle = get_handle(ctx, "a", Policy::kOffload);
    if (auto saved = handle.maybe_load_saved()) return (*saved)[0];
    handle.save_for_backward({{"x", x}, {"w", w}});
    return handle.record_outputs(x.matmul(w) * 2);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return Project::backward(ctx, grads);
  }
};

/// The first saved tensor is the argument, which a replay makes; the second is the result of sin.
at::Tensor sin_cos(const at::Tensor& t) {
  return t.sin().cos();
}

}  // namespace

TEST_CASE("Hooks get arguments and kept values once each, with a description",
          "[backend][native_op][hooks]") {
  LoggingHooks log;
  const auto fn = [](const at::Tensor& x) {
    const at::Tensor a = save("a", sin_cos)(x.cos());
    const at::Tensor b = recompute("b", sin_cos)(a);
    return b.exp();
  };
  const at::Tensor x = step_input();
  const at::Tensor y = checkpoint({.name = "r", .saved_tensors_hooks = log.hooks()})(fn)(x);
  // Saved tensors of bare ops and RECOMPUTE calls are not packed, nor is the argument of a, which
  // the replay makes.
  CHECK(log.packed == Log{"input", "backward of a", "output of a"});
  CHECK(log.regions == Log{"r", "r", "r"});
  CHECK(log.given[0].is_alias_of(x));
  CHECK_FALSE(log.given[0].requires_grad());
  CHECK(log.unpacked.empty());
  y.sum().backward();
  CHECK(log.packed.size() == 3);
  // A leaf that is still alive is used directly.
  CHECK(log.unpacked == Log{"output of a", "backward of a"});
}

TEST_CASE("An argument that is no leaf is unpacked once", "[backend][native_op][hooks]") {
  LoggingHooks log;
  const auto fn = [](const at::Tensor& x) { return save("a", sin_cos)(x.cos()).exp(); };
  checkpoint({.saved_tensors_hooks = log.hooks()})(fn)(step_input() + 1).sum().backward();
  Log unpacked = log.unpacked;
  std::sort(unpacked.begin(), unpacked.end());
  CHECK(unpacked == Log{"backward of a", "input", "output of a"});
}

TEST_CASE("A tensor that an op saves before it runs is packed before its results",
          "[backend][native_op][hooks]") {
  LoggingHooks log;
  const TensorFn norm = [](const at::Tensor& t) { return (t * 2).norm(); };
  const auto fn = [&](const at::Tensor& x) { return save("a", norm)(x.cos()).exp(); };
  checkpoint({.saved_tensors_hooks = log.hooks()})(fn)(step_input());
  CHECK(log.packed == Log{"input", "backward of a", "backward of a", "output of a"});
  REQUIRE(log.given.size() == 4);
  CHECK(log.given[1].dim() == 2);
  CHECK(log.given[2].dim() == 0);
}

TEST_CASE("Under hooks gradients are bitwise as plain", "[backend][native_op][hooks]") {
  LoggingHooks log;
  check_as_plain(
      [](const at::Tensor& x) {
        return recompute("b", sin_cos)(save("a", sin_cos)(x.cos())).exp();
      },
      {}, {.saved_tensors_hooks = log.hooks()});
}

TEST_CASE("Results of SAVE calls are unpacked first, in order, then what nodes want",
          "[backend][native_op][hooks]") {
  LoggingHooks log;
  const auto fn = [](const at::Tensor& x) {
    const at::Tensor a = save("a", sin_cos)(x.cos());
    const at::Tensor b = save("b", sin_cos)(a);
    return (a.exp() * b.exp()).sin();
  };
  const at::Tensor y = checkpoint({.saved_tensors_hooks = log.hooks()})(fn)(step_input());
  y.sum().backward();
  Log outputs;
  Log backward;
  for (const std::string& text : log.unpacked) {
    if (text.find("output") == 0) {
      CHECK(backward.empty());
      outputs.push_back(text);
    } else if (text.find("backward") == 0) {
      backward.push_back(text);
    }
  }
  CHECK(outputs == Log{"output of a", "output of b"});
  // Nodes run from the end; b saved the result of a and a tensor of its own.
  CHECK(backward == Log{"backward of b", "backward of b", "backward of a"});
}

TEST_CASE("Each backward of a kept graph unpacks again, and packs nothing",
          "[backend][native_op][hooks]") {
  LoggingHooks log;
  const at::Tensor loss = checkpoint({.saved_tensors_hooks = log.hooks()})([](const at::Tensor& x) {
                            return save("a", sin_cos)(x.cos()).exp();
                          })(step_input())
                              .sum();
  const size_t packed = log.packed.size();
  loss.backward({}, /*retain_graph=*/true);
  const size_t unpacked = log.unpacked.size();
  loss.backward();
  CHECK(log.packed.size() == packed);
  CHECK(log.unpacked.size() == 2 * unpacked);
}

TEST_CASE("The hooks of the options win over a guard around the region",
          "[backend][native_op][hooks]") {
  LoggingHooks own;
  LoggingHooks around;
  const auto fn = [](const at::Tensor& x) { return save("a", sin_cos)(x.cos()).exp(); };
  {
    const SavedTensorsHooksGuard guard(around.hooks());
    checkpoint({.saved_tensors_hooks = own.hooks()})(fn)(step_input());
  }
  CHECK(around.packed.empty());
  CHECK(own.packed == Log{"input", "backward of a", "output of a"});
}

TEST_CASE("The innermost guard around a region serves, even after it is gone",
          "[backend][native_op][hooks]") {
  LoggingHooks outer;
  LoggingHooks inner;
  at::Tensor y;
  {
    const SavedTensorsHooksGuard outer_guard(outer.hooks());
    const SavedTensorsHooksGuard inner_guard(inner.hooks());
    y = checkpoint()([](const at::Tensor& x) { return save("a", sin_cos)(x.cos()).exp(); })(
        step_input());
  }
  y.sum().backward();
  CHECK(outer.packed.empty());
  CHECK(inner.packed == Log{"input", "backward of a", "output of a"});
  CHECK(inner.unpacked == Log{"output of a", "backward of a"});
}

TEST_CASE("A region inside packs nothing again when the outer one is replayed",
          "[backend][native_op][hooks]") {
  LoggingHooks log;
  const TensorFn fn = [](const at::Tensor& x) { return x.sin().exp().sin(); };
  const TensorFn inner = checkpoint({.saved_tensors_hooks = log.hooks()})(fn);
  const auto around = [](const TensorFn& of) {
    return TensorFn([of](const at::Tensor& x) { return of(x.cos()).tanh(); });
  };
  check_same(step(checkpoint()(around(inner))), step(around(fn)));
  CHECK(log.packed == Log{"input"});
}

TEST_CASE("A guard inside a SAVE call gets what the call saves under it",
          "[backend][native_op][hooks]") {
  LoggingHooks around;
  LoggingHooks inside;
  const auto call = [&](const at::Tensor& t) {
    const SavedTensorsHooksGuard guard(inside.hooks());
    return t.sin().cos();
  };
  const SavedTensorsHooksGuard guard(around.hooks());
  const at::Tensor y =
      checkpoint()([&](const at::Tensor& x) { return save("a", call)(x.cos()); })(step_input());
  CHECK(around.packed == Log{"input"});
  CHECK(inside.packed == Log{"backward of a"});  // the result of sin; sin's argument is recomputed
  y.sum().backward();
  CHECK(inside.packed.size() == 1);
  CHECK(inside.unpacked.size() == 1);
}

TEST_CASE("A guard in a region gets what SAVE calls under it keep, once, and nothing of bare code",
          "[backend][native_op][hooks]") {
  const bool nested = GENERATE(false, true);
  for (const ReplayEngine engine : {ReplayEngine::kFunction, ReplayEngine::kTape}) {
    LoggingHooks inside;
    LoggingHooks own;
    const TensorFn plain = [](const at::Tensor& x) {
      return sin_cos(sin_cos(x.cos())).exp().sin();
    };
    const TensorFn fn = [&](const at::Tensor& x) {
      at::Tensor a;
      {
        const SavedTensorsHooksGuard guard(inside.hooks());
        a = save("a", sin_cos)(x.cos());
        a = recompute("b", sin_cos)(a).exp();
      }
      return a.sin();
    };
    const CheckpointOptions options{.replay = engine, .saved_tensors_hooks = own.hooks()};
    const TensorFn region = checkpoint(options)(fn);
    const TensorFn outer = checkpoint({.replay = engine})(region);
    check_same(step(nested ? outer : region), step(plain));
    CHECK(inside.packed == Log{"backward of a", "output of a"});
    CHECK(inside.unpacked == Log{"output of a", "backward of a"});
    CHECK(own.packed == Log{"input"});
  }
}

TEST_CASE("A result goes to the guard that its call was made under, with its context",
          "[backend][native_op][hooks]") {
  LoggingHooks log;
  const auto fn = [&](const at::Tensor& x) {
    std::array<at::Tensor, 2> results;
    for (int i = 0; i < 2; ++i) {
      SavedTensorsHooks hooks = log.hooks(i == 0 ? "first: " : "second: ");
      hooks.capture_context = [i]() -> std::any { return i; };
      const SavedTensorsHooksGuard guard(hooks);
      results.at(i) = save(i == 0 ? "a" : "b", [](const at::Tensor& t) { return t * 2; })(x.cos());
    }
    return (results[0] + results[1]).exp();
  };
  checkpoint({.saved_tensors_hooks = log.hooks("own: ")})(fn)(step_input()).sum().backward();
  CHECK(log.packed == Log{"own: input", "first: output of a at 0", "second: output of b at 1"});
}

TEST_CASE("An op that fills what it has saved is offloaded when it has run",
          "[backend][native_op][offload]") {
  const bool nested = GENERATE(false, true);
  const TensorFn noisy = [](const at::Tensor& x) {
    return torch::rrelu(x, 0.1, 0.3, /*training=*/true);
  };
  const auto run = [&](const TensorFn& call, const CheckpointOptions* options) {
    torch::manual_seed(3);
    const TensorFn fn = [&](const at::Tensor& x) { return call(x.sin()).exp(); };
    if (!options) return step(fn);
    const TensorFn region = checkpoint(*options)(fn);
    return step(nested ? TensorFn(checkpoint(*options)(region)) : region);
  };
  const Tensors expected = run(noisy, nullptr);
  const CheckpointOptions none;
  SECTION("to a store") {
    const CheckpointOptions options{.offload_store = host_memory_store()};
    check_same(run(native_op(noisy, "a", Policy::kOffload), &options), expected);
  }
  SECTION("to hooks of the options") {
    LoggingHooks log;
    const CheckpointOptions options{.saved_tensors_hooks = log.hooks()};
    check_same(run(save("a", noisy), &options), expected);
  }
  SECTION("to hooks around") {
    LoggingHooks log;
    const SavedTensorsHooksGuard guard(log.hooks());
    check_same(run(save("a", noisy), &none), expected);
  }
  SECTION("to hooks inside the call") {
    LoggingHooks log;
    const TensorFn call = [&](const at::Tensor& x) {
      const SavedTensorsHooksGuard guard(log.hooks());
      return noisy(x);
    };
    check_same(run(save("a", call), &none), expected);
  }
}

TEST_CASE("Results that hooks have are asked for when the function has been entered",
          "[backend][native_op][hooks]") {
  LoggingHooks log;
  bool is_back = false;
  SavedTensorsHooks hooks = log.hooks();
  hooks.unpack = [&, unpack = hooks.unpack](const std::any& kept) {
    CHECK_FALSE(is_recomputing());
    TORCH_CHECK(is_back, "not brought back");
    return unpack(kept);
  };
  const TensorFn plain = [](const at::Tensor& x) { return sin_cos(x.cos()).exp(); };
  const TensorFn fn = [&](const at::Tensor& x) {
    is_back = is_recomputing();
    return save("a", sin_cos)(x.cos()).exp();
  };
  check_same(step(checkpoint({.saved_tensors_hooks = hooks})(fn)), step(plain));
}

TEST_CASE("A saved tensor's description is available in pack only", "[backend][native_op][hooks]") {
  CHECK_THAT(error_text([] { current_saved_tensor_info(); }),
             ContainsSubstring("[current_saved_tensor_info] expected to be called by the pack "
                               "function of saved-tensor hooks"));
  LoggingHooks log;
  {
    const SavedTensorsHooksGuard guard(log.hooks());
    step_input().sin();
  }
  CHECK(log.packed == Log{"backward"});  // packed outside regions
}

TEST_CASE("A context is that of the place where a tensor is made", "[backend][native_op][hooks]") {
  LoggingHooks log;
  SavedTensorsHooks hooks = log.hooks();
  int place = 0;
  hooks.capture_context = [&]() -> std::any { return place; };
  const auto fn = [&](const at::Tensor& x) {
    const at::Tensor h = x.cos();
    place = 1;
    const at::Tensor a = save("a", sin_cos)(h);
    place = 2;
    const at::Tensor b = save("b", sin_cos)(h);
    place = 3;
    return (a + b).exp();  // reads both, so they are packed here
  };
  const at::Tensor y = checkpoint({.saved_tensors_hooks = hooks})(fn)(step_input());
  CHECK(log.packed == Log{"input at 0", "backward of a at 1", "backward of b at 2",
                          "output of a at 1", "output of b at 2"});
}

TEST_CASE("Storages that were packed may be freed", "[backend][native_op][hooks]") {
  LoggingHooks log;
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor a = save("a", sin_cos)(x.cos());
    return (a + 1).exp();
  };
  const at::Tensor x = step_input();
  const at::Tensor y = checkpoint({.saved_tensors_hooks = log.hooks()})(fn)(x);
  REQUIRE(log.packed == Log{"input", "backward of a", "output of a"});
  for (const size_t i : {1, 2}) log.given[i].storage().unsafeGetStorageImpl()->reset();
  (y * y.detach()).sum().backward();
  check_same({y.detach(), x.grad()}, step(fn));
}

TEST_CASE("A pack that throws ends the forward, also in a SAVE call",
          "[backend][native_op][hooks]") {
  for (const std::string victim : {"backward of a", "output of a"}) {
    LoggingHooks log;
    SavedTensorsHooks hooks = log.hooks();
    hooks.pack = [&, pack = hooks.pack](const at::Tensor& t) {
      const std::any kept = pack(t);
      TORCH_CHECK(log.packed.back() != victim, "mine");
      return kept;
    };
    const auto fn = [](const at::Tensor& x) { return save("a", sin_cos)(x.cos()).exp(); };
    CHECK_THAT(error_text([&] { checkpoint({.saved_tensors_hooks = hooks})(fn)(step_input()); }),
               ContainsSubstring("mine"));
  }
}

TEST_CASE("A store gets what OFFLOAD calls make, and gives it back once per backward",
          "[backend][native_op][offload]") {
  const auto store = std::make_shared<CountingStore>();
  const at::Tensor w = torch::ones({8, 8}).requires_grad_();
  const auto project = [&](const at::Tensor& t) { return t.matmul(w).exp(); };
  const auto fn = [&](const at::Tensor& x) {
    const at::Tensor a = native_op(project, "a", Policy::kOffload)(x.sin());
    const at::Tensor b = save("b", sin_cos)(a.cos());
    return b.exp();
  };
  const CheckpointOptions options{.offload_store = store};
  SECTION("the tensors") {
    const at::Tensor loss = checkpoint(options)(fn)(step_input()).sum();
    // The result of exp is put for its node and for the bare cos; the weight, x.sin() and b are not
    // put.
    CHECK(store->puts == 2);
    CHECK(store->gets == 0);
    loss.backward({}, /*retain_graph=*/true);
    CHECK(store->gets == 2);
    CHECK(store->held == 2);
    loss.backward();
    CHECK(store->puts == 2);
    CHECK(store->gets == 4);
    CHECK(store->held == 0);
  }
  SECTION("a graph that is dropped gives the places free") {
    {
      const at::Tensor y = checkpoint(options)(fn)(step_input());
      CHECK(store->held == 2);
    }
    CHECK(store->held == 0);
  }
  SECTION("gradients") {
    check_as_plain(fn, {w}, options);
  }
  SECTION("beside hooks, which get the rest") {
    LoggingHooks log;
    CheckpointOptions both = options;
    both.saved_tensors_hooks = log.hooks();
    checkpoint(both)(fn)(step_input());
    CHECK(store->puts == 2);
    CHECK(log.packed ==
          Log{"input", "backward of a", "backward of b", "output of b"});  // the input is w
  }
}

TEST_CASE("A store gets no weight that a custom function saves", "[backend][native_op][offload]") {
  const auto store = std::make_shared<CountingStore>();
  const at::Tensor w = torch::ones({8, 8}).requires_grad_();
  const auto fn = [&](const at::Tensor& x) {
    return op<Project>("a", Policy::kOffload)(x.sin(), w);
  };
  const at::Tensor y = checkpoint({.offload_store = store})(fn)(step_input());
  CHECK(store->puts == 0);
  check_as_plain(fn, {w}, {.offload_store = store});
}

TEST_CASE("A store gets nothing that a backward inside a call saves",
          "[backend][native_op][offload]") {
  const auto store = std::make_shared<CountingStore>();
  const at::Tensor w = torch::ones({8, 8}).requires_grad_();
  const auto gradient = [&](const at::Tensor& t) {
    const at::Tensor loss = t.matmul(w).exp().sum();
    return torch::autograd::grad({loss}, {t}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  };
  const auto fn = [&](const at::Tensor& x) {
    return native_op(gradient, "a", Policy::kOffload)(x.sin()).exp();
  };
  checkpoint({.offload_store = store})(fn)(step_input());
  // The result of exp in the call, and the call's own result, which the bare exp reads.
  CHECK(store->sizes == std::vector<std::vector<int64_t>>{{4, 8}, {4, 8}});
  check_as_plain(fn, {w}, {.offload_store = store});
}

TEST_CASE("A store gets no weight that is saved by way of a handle",
          "[backend][native_op][offload]") {
  const auto store = std::make_shared<CountingStore>();
  const at::Tensor w = torch::ones({8, 8}).requires_grad_();
  const auto fn = [&](const at::Tensor& x) { return HandleProject::apply(x.sin(), w).exp(); };
  const at::Tensor y = checkpoint({.offload_store = store})(fn)(step_input());
  // x is put, since a handle has no arguments from which a replay could fill its slot. The result
  // is put because exp reads it.
  CHECK(store->sizes == std::vector<std::vector<int64_t>>{{4, 8}, {4, 8}});
  check_as_plain(fn, {w}, {.offload_store = store});
}

TEST_CASE("Without a store OFFLOAD uses the hooks of the options",
          "[backend][native_op][offload]") {
  LoggingHooks log;
  const auto fn = [](const at::Tensor& x) {
    return native_op(sin_cos, "a", Policy::kOffload)(x.cos()).exp();
  };
  check_as_plain(fn, {}, {.saved_tensors_hooks = log.hooks()});
  CHECK(log.packed == Log{"input", "backward of a", "output of a"});
}

TEST_CASE("An error of a store reaches the caller", "[backend][native_op][offload]") {
  struct Full final : OffloadStore {
    std::shared_ptr<Ticket> put(const at::Tensor& /*tensor*/) override {
      TORCH_CHECK(false, "the disk is full");
    }
  };
  struct Lost final : OffloadStore {
    struct Nothing final : Ticket {
      at::Tensor get() override { TORCH_CHECK(false, "the disk is gone"); }
    };
    std::shared_ptr<Ticket> put(const at::Tensor& /*tensor*/) override {
      return std::make_shared<Nothing>();
    }
  };
  const auto fn = [](const at::Tensor& x) {
    return native_op(sin_cos, "a", Policy::kOffload)(x.cos()).exp();
  };
  const at::Tensor x = step_input();
  CHECK_THAT(error_text([&] { checkpoint({.offload_store = std::make_shared<Full>()})(fn)(x); }),
             ContainsSubstring("the disk is full"));
  const at::Tensor y = checkpoint({.offload_store = std::make_shared<Lost>()})(fn)(x);
  CHECK_THAT(error_text([&] { y.sum().backward(); }), ContainsSubstring("the disk is gone"));
}

TEST_CASE("An exception of a store that is not a std::exception becomes an error",
          "[backend][native_op][offload]") {
  struct Odd final : OffloadStore {
    struct Number final : Ticket {
      at::Tensor get() override { throw 1; }
    };
    std::shared_ptr<Ticket> put(const at::Tensor& /*tensor*/) override {
      return std::make_shared<Number>();
    }
  };
  const at::Tensor y =
      checkpoint({.offload_store = std::make_shared<Odd>()})([](const at::Tensor& t) {
        return native_op(sin_cos, "a", Policy::kOffload)(t.cos()).exp();
      })(step_input());
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring(on_default_device(
                 "[saved_tensors_hooks] unpack: expected a float32 [4, 8] on cpu")));
}

}  // namespace remat
