// SPDX-License-Identifier: BSD-3-Clause

// tiled(options)(fn)(args...): runs fn on slices of its arguments, each slice as a region.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <remat/backend/checkpoint.h>
#include <remat/backend/checkpoint_options.h>
#include <remat/backend/forward_region.h>
#include <remat/backend/tensor_tree.h>

namespace remat {

struct TiledOptions {
  /// Dimension along which arguments are cut; negative values count from the last.
  int64_t dim = 0;
  int64_t tiles = 0;  ///< Number of tiles, 1 or more; capped at the arguments' length along dim.
  /// Options of each tile's region, which is named region.name + "[i]".
  CheckpointOptions region{};
};

namespace detail {

/// The elements [first, first + length) of a tile.
struct TileRange {
  int64_t first = 0;
  int64_t length = 0;
};

/// The range of tile `number` of `tiles`. If `length` does not divide evenly, the first tiles are
/// one element longer.
REMAT_API TileRange tile_range(int64_t length, int64_t tiles, int64_t number);

/// The length along dim, which all arguments must share. Throws ValueError if lengths differ, or
/// there are no arguments.
REMAT_API int64_t tiled_length(c10::ArrayRef<at::Tensor> arguments, const TiledOptions& options);

/// Joins the parts of one result, one per tile. Throws ValueError if a part is neither a scalar nor
/// as long along dim as its tile.
REMAT_API at::Tensor join_tiles(const std::vector<at::Tensor>& parts, int64_t length,
                                const TiledOptions& options);

/// Throws ValueError if `options` are invalid.
REMAT_API void check_tiled_options(const TiledOptions& options);

}  // namespace detail

/// The function that tiled(options)(fn) returns, which runs fn slice by slice. Copyable.
template <class F>
class Tiled {
 public:
  Tiled(TiledOptions options, F fn) : options_(std::move(options)), fn_(std::move(fn)) {}

  /// Calls fn once per slice. Tensors among `args` are cut along dim and must have the same length
  /// there; a tensor in std::ref and all other arguments are passed whole. Scalar results of fn are
  /// added, and other tensors are concatenated along dim.
  template <class... Args>
  auto operator()(Args&&... args) const {
    const std::tuple<std::decay_t<Args>...> whole(std::forward<Args>(args)...);
    std::vector<at::Tensor> tensors;
    visit_cut(whole, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    const int64_t length = detail::tiled_length(tensors, options_);
    const int64_t tiles = std::clamp<int64_t>(length, 1, options_.tiles);
    auto result = run_tile(whole, detail::tile_range(length, tiles, 0), 0);
    std::vector<std::vector<at::Tensor>> parts;
    add_parts(parts, result);
    for (int64_t i = 1; i < tiles; ++i)
      add_parts(parts, run_tile(whole, detail::tile_range(length, tiles, i), i));
    size_t next = 0;
    detail::visit_tensors(result, [&](at::Tensor& tensor) {
      tensor = detail::join_tiles(parts[next++], length, options_);
    });
    return result;
  }

 private:
  template <class Tuple, class Visitor>
  static void visit_cut(Tuple& arguments, Visitor&& visitor) {
    const auto visit = [&](auto& argument) {
      if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, at::Tensor>) visitor(argument);
    };
    std::apply([&](auto&... all) { (visit(all), ...); }, arguments);
  }

  template <class... Args>
  auto run_tile(std::tuple<Args...> tile, detail::TileRange range, int64_t number) const {
    visit_cut(tile, [&](at::Tensor& tensor) {
      tensor = tensor.narrow(options_.dim, range.first, range.length);
    });
    if (detail::runs_in_segments()) {
      F fn = fn_;
      return detail::CallResult<F, Args...>(detail::call(fn, tile));
    }
    CheckpointOptions region = options_.region;
    region.name.append("[").append(std::to_string(number)).append("]");
    return std::apply(checkpoint(std::move(region))(fn_), std::move(tile));
  }

  template <class Result>
  static void add_parts(std::vector<std::vector<at::Tensor>>& parts, const Result& result) {
    size_t next = 0;
    detail::visit_tensors(result, [&](const at::Tensor& tensor) {
      if (parts.size() <= next) parts.emplace_back();
      parts[next++].push_back(tensor);
    });
  }

  TiledOptions options_;
  F fn_;
};

/// Runs fn on slices of its tensor arguments, for functions whose intermediate tensors are much
/// larger than their results: a head's logits, an MLP's inner layer. Each slice is a region that
/// backward replays when it reaches the slice, so only one slice's intermediates are alive at a
/// time. In a step of auto_checkpoint() slices are no regions, because the plan says what is kept
/// of each.
///
///     at::Tensor loss = remat::tiled({.dim = 0, .tiles = 8})(head_loss)(hidden, targets);
///
/// The result is not bitwise that of fn(args...): sums over slices (added results, gradients of
/// weights) are added in another order, and matrix products of other shapes may round differently.
/// Throws ValueError for invalid options, and if tensor arguments differ in length along dim. Any
/// thread may call it. Source: tiled losses and MLPs of Arctic long-sequence training.
inline auto tiled(TiledOptions options) {
  detail::check_tiled_options(options);
  return [options = std::move(options)]<class F>(F fn) { return Tiled<F>(options, std::move(fn)); };
}

}  // namespace remat
