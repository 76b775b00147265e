// SPDX-License-Identifier: BSD-3-Clause

// tiled(options)(fn)(args...): run fn on slices of its arguments, each of them a region.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

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
  int64_t dim = 0;             ///< Along which arguments are cut; negative: from the last one.
  int64_t tiles = 0;           ///< How many, 1 or more; no more than there are elements along dim.
  CheckpointOptions region{};  ///< Of each tile's region; named region.name + "[i]".
};

namespace detail {

/// Elements [first, first + length) of a tile.
struct TileRange {
  int64_t first = 0;
  int64_t length = 0;
};

/// Of tile `number` of `tiles`; the first ones are one longer if that does not come out even.
REMAT_API TileRange tile_range(int64_t length, int64_t tiles, int64_t number);

/// How long all arguments are along dim. Throws ValueError if they differ, or there are none.
REMAT_API int64_t tiled_length(c10::ArrayRef<at::Tensor> arguments, const TiledOptions& options);

/// One result of all tiles. Throws ValueError for one that is neither a scalar nor as long along
/// dim as its tile.
REMAT_API at::Tensor join_tiles(const std::vector<at::Tensor>& parts, int64_t length,
                                const TiledOptions& options);

/// Throws ValueError for options that cannot be used.
REMAT_API void check_tiled_options(const TiledOptions& options);

}  // namespace detail

/// What tiled(options)(fn) returns: fn, slice by slice. Copyable.
template <class F>
class Tiled {
 public:
  Tiled(TiledOptions options, F fn) : options_(std::move(options)), fn_(std::move(fn)) {}

  /// Calls fn once for each slice. Tensors among `args` are cut along dim and must be of one length
  /// there; std::ref passes a tensor whole, as other arguments are. Of what fn returns, scalars
  /// are added, other tensors are joined along dim.
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

/// Runs fn on slices of its tensors, for what is large in between and not after it: a head's
/// logits, an MLP's inner layer. Each slice is a region, which backward runs again when it comes to
/// it, so one slice's memory is there at a time. In a step of auto_checkpoint() slices are no
/// regions: its plan says what of each is kept.
///
///     at::Tensor loss = remat::tiled({.dim = 0, .tiles = 8})(head_loss)(hidden, targets);
///
/// Not bitwise the same as fn of the whole: sums over slices (added results, gradients of weights)
/// are added in another order; and matrix products of other shapes may round otherwise. Throws
/// ValueError for options that cannot be used, and for lengths that differ. Any thread.
/// Source: tiled losses and MLPs of Arctic long-sequence training.
inline auto tiled(TiledOptions options) {
  detail::check_tiled_options(options);
  return [options = std::move(options)]<class F>(F fn) { return Tiled<F>(options, std::move(fn)); };
}

}  // namespace remat
