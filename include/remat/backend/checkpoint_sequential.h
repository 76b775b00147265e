// SPDX-License-Identifier: BSD-3-Clause

// Checkpointing of a chain of layers in segments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <remat/backend/checkpoint.h>

namespace remat {
namespace detail {

using Layer = std::function<at::Tensor(const at::Tensor&)>;

/// Makes a function of a layer: a callable, torch::nn::AnyModule, or a pointer to a module with
/// forward(Tensor).
template <class T>
Layer make_layer(const T& layer) {
  T copy = layer;
  if constexpr (std::is_invocable_r_v<at::Tensor, T&, const at::Tensor&>) {
    return [copy](const at::Tensor& x) mutable -> at::Tensor { return copy(x); };
  } else if constexpr (requires { copy.template forward<at::Tensor>(at::Tensor()); }) {
    return [copy](const at::Tensor& x) mutable {
      return copy.template forward<at::Tensor>(at::Tensor(x));
    };
  } else {
    static_assert(
        requires { copy->forward(at::Tensor()); },
        "[checkpoint_sequential] layers: expected torch::nn::Sequential, or a range of functions "
        "or module pointers that take a Tensor and return a Tensor; got something else.");
    return [copy](const at::Tensor& x) -> at::Tensor { return copy->forward(x); };
  }
}

template <class Layers>
std::vector<Layer> make_layers(const Layers& layers) {
  std::vector<Layer> result;
  if constexpr (requires { layers->begin(); }) {
    for (const auto& layer : *layers) result.push_back(make_layer(layer));
  } else {
    for (const auto& layer : layers) result.push_back(make_layer(layer));
  }
  return result;
}

}  // namespace detail

/// The chain that checkpoint_sequential(segments, options)(layers) returns. Copyable.
class CheckpointedSequential {
 public:
  CheckpointedSequential(std::vector<detail::Layer> layers, int64_t segments,
                         CheckpointOptions options)
      : layers_(std::make_shared<const std::vector<detail::Layer>>(std::move(layers))),
        segments_(segments),
        options_(std::move(options)) {}

  /// Runs the layers on `x`; the output is bitwise that of the plain chain.
  at::Tensor operator()(at::Tensor x) const {
    const auto run = [&](int64_t begin, int64_t end) {
      return [layers = layers_, begin, end](at::Tensor input) {
        for (const auto i : c10::irange(begin, end)) input = (*layers)[i](input);
        return input;
      };
    };
    const auto per_segment = static_cast<int64_t>(layers_->size()) / segments_;
    int64_t begin = 0;
    for (const auto segment : c10::irange(segments_ - 1)) {
      CheckpointOptions options = options_;
      options.name.append("[").append(std::to_string(segment)).append("]");
      x = checkpoint(std::move(options))(run(begin, begin + per_segment))(std::move(x));
      begin += per_segment;
    }
    return run(begin, static_cast<int64_t>(layers_->size()))(x);
  }

 private:
  std::shared_ptr<const std::vector<detail::Layer>> layers_;
  int64_t segments_;
  CheckpointOptions options_;
};

/// Splits a chain of layers into `segments` of equal length (the last one takes the rest) and
/// checkpoints all but the last, which backward would replay at once:
/// checkpoint_sequential(segments, options)(layers)(x). Regions are named options.name + "[i]".
/// Throws ValueError unless 1 <= segments <= number of layers. Source:
/// torch.utils.checkpoint.checkpoint_sequential.
inline auto checkpoint_sequential(int64_t segments, CheckpointOptions options = {}) {
  detail::check_options(options, "checkpoint_sequential");
  return [segments, options = std::move(options)](const auto& layers) {
    std::vector<detail::Layer> steps = detail::make_layers(layers);
    TORCH_CHECK_VALUE(segments >= 1 && segments <= static_cast<int64_t>(steps.size()),
                      "[checkpoint_sequential] segments: ", "expected 1 to ", steps.size(),
                      ", the number of layers, got ", segments, ".");
    return CheckpointedSequential(std::move(steps), segments, options);
  };
}

}  // namespace remat
