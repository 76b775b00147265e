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

/// A function that runs layers begin to end - 1.
inline auto run_layers(std::shared_ptr<const std::vector<Layer>> layers, int64_t begin,
                       int64_t end) {
  return [layers = std::move(layers), begin, end](at::Tensor x) {
    for (const auto i : c10::irange(begin, end)) x = (*layers)[i](x);
    return x;
  };
}

}  // namespace detail

/// Splits a chain of layers into `segments` of equal length (the last one takes the rest) and
/// checkpoints all but the last, which backward would replay at once, without saving memory. Call
/// it as checkpoint_sequential(segments, options)(layers)(x). The output is bitwise that of the
/// plain chain. Regions are named options.name + "[i]". Throws ValueError unless 1 <= segments <=
/// number of layers. Source: torch.utils.checkpoint.checkpoint_sequential.
inline auto checkpoint_sequential(int64_t segments, CheckpointOptions options = {}) {
  detail::check_options(options, "checkpoint_sequential");
  return [segments, options = std::move(options)](const auto& layers) {
    std::vector<detail::Layer> steps = detail::make_layers(layers);
    TORCH_CHECK_VALUE(segments >= 1 && segments <= static_cast<int64_t>(steps.size()),
                      "[checkpoint_sequential] segments: ", "expected 1 to ", steps.size(),
                      ", the number of layers, got ", segments, ".");
    const auto per_segment = static_cast<int64_t>(steps.size()) / segments;
    const auto shared = std::make_shared<const std::vector<detail::Layer>>(std::move(steps));
    return [=](at::Tensor x) {
      for (const auto i : c10::irange(segments - 1)) {
        CheckpointOptions named = options;
        named.name.append("[").append(std::to_string(i)).append("]");
        x = checkpoint(std::move(named))(
            detail::run_layers(shared, i * per_segment, (i + 1) * per_segment))(std::move(x));
      }
      const auto end = static_cast<int64_t>(shared->size());
      return detail::run_layers(shared, (segments - 1) * per_segment, end)(std::move(x));
    };
  };
}

}  // namespace remat
