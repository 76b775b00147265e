// SPDX-License-Identifier: BSD-3-Clause

// Regions in which every hook is a point that may throw.
#include <torch/torch.h>

#include <any>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include <remat/remat.h>

#include "faults/injector.h"
#include "faults/models.h"

namespace remat::faults {
namespace {

void point(const char* name) {
  pass_point(Kind::kCallback, name);
}

struct Store final : OffloadStore {
  struct Place final : Ticket {
    explicit Place(at::Tensor tensor) : tensor_(std::move(tensor)) {}
    at::Tensor get() override {
      point("Ticket::get");
      return tensor_.clone();
    }

   private:
    at::Tensor tensor_;
  };
  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    point("OffloadStore::put");
    return std::make_shared<Place>(tensor.clone());
  }
};

SavedTensorsHooks copying_hooks() {
  return {.pack = [](const at::Tensor& tensor) -> std::any {
            point("pack");
            return tensor.clone();
          },
          .unpack =
              [](const std::any& packed) {
                point("unpack");
                return std::any_cast<const at::Tensor&>(packed).clone();
              },
          .capture_context = []() -> std::any {
            point("capture_context");
            return 1;
          }};
}

/// Saves tensors, and runs user code in its forward and its backward.
struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    point("Function::forward");
    ctx->save_for_backward({x});
    return x + x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    point("Function::backward");
    TORCH_CHECK(ctx->get_saved_variables()[0].sizes() == grads[0].sizes());
    return {grads[0] + grads[0]};
  }
};

/// An object captured by a region's function: copies of the function may throw.
struct Copied {
  Copied() = default;
  Copied(const Copied& /*other*/) { point("a copy of the function"); }
  Copied(Copied&& /*other*/) noexcept {}
  Copied& operator=(const Copied&) = delete;
  Copied& operator=(Copied&&) = delete;
  ~Copied() = default;
};

at::Tensor with_hook(const at::Tensor& tensor, const char* name) {
  if (tensor.requires_grad())
    tensor.register_hook([name](const at::Tensor& /*grad*/) { point(name); });
  return tensor;
}

}  // namespace

struct Counter final : StateHook {
  int value = 0;

  std::any snapshot() override {
    point("snapshot");
    return value;
  }
  void restore(const std::any& state) override {
    value = std::any_cast<int>(state);
    point("restore");
  }
};

namespace {

std::atomic<size_t> names{0};

void add_callbacks(CheckpointOptions& options, const std::shared_ptr<Counter>& counter) {
  options.state_hooks.push_back(counter);
  options.saved_tensors_hooks = copying_hooks();
  if (options.offload_store) options.offload_store = std::make_shared<Store>();
  options.op_site = [] {
    point("op_site");
    return std::string("here");
  };
  options.policy = make_policy(options.policy ? options.policy->table() : PolicyTable(),
                               [](const PolicyQuery& /*query*/) -> std::optional<Policy> {
                                 point("policy function");
                                 return std::nullopt;
                               });
}

}  // namespace

std::shared_ptr<Counter> make_callbacks() {
  return std::make_shared<Counter>();
}

namespace {

struct Watch {
  CallTrace calls{[] {
    point("CallTrace's applies");
    return true;
  }};
};

}  // namespace

std::shared_ptr<void> Regions::watch() const {
  return callbacks ? std::make_shared<Watch>() : nullptr;
}

int Regions::count() const {
  return callbacks ? callbacks->value : 0;
}

void Regions::reset_count() const {
  if (callbacks) callbacks->value = 0;
}

at::Tensor Regions::run(CheckpointOptions options, TensorFn fn, const at::Tensor& x) const {
  auto body = [fn = std::move(fn), copied = Copied(),
               counter = callbacks](const at::Tensor& in) mutable {
    point("a function begins");
    if (counter) ++counter->value;
    const at::Tensor y = with_hook(Doubled::apply(fn(in)), "a tensor hook in a region");
    point(kFunctionEnds);
    return y;
  };
  if (plain) return body(x);
  if (options.replay == ReplayEngine::kFunction) options.replay = engine;
  if (new_names) options.name += c10::str(" ", ++names);
  if (callbacks) add_callbacks(options, callbacks);
  return with_hook(
      checkpoint(std::move(options))(body)(with_hook(x, "a tensor hook of an argument")),
      "a tensor hook of a result");
}

}  // namespace remat::faults
