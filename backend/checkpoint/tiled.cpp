// SPDX-License-Identifier: BSD-3-Clause

// Where each tile begins, checks of its arguments, and joining the results of tiles.
#include <remat/backend/tiled.h>

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <c10/util/irange.h>

#include <string_view>

namespace remat::detail {

void check_tiled_options(const TiledOptions& options) {
  check_options(options.region, "tiled");
  TORCH_CHECK_VALUE(options.tiles >= 1, "[tiled] tiles: expected 1 or more, got ", options.tiles,
                    ".");
}

namespace {

bool has_dim(const at::Tensor& tensor, int64_t dim) {
  return tensor.defined() && dim >= -tensor.dim() && dim < tensor.dim();
}

std::string_view kind_of(const at::Tensor& part) {
  if (!part.defined()) return "none";
  return part.dim() == 0 ? "a scalar" : "a tensor with dimensions";
}

}  // namespace

TileRange tile_range(int64_t length, int64_t tiles, int64_t number) {
  const int64_t shorter = length / tiles;
  const int64_t longer = length % tiles;
  return {number * shorter + std::min(number, longer), shorter + (number < longer ? 1 : 0)};
}

int64_t tiled_length(c10::ArrayRef<at::Tensor> arguments, const TiledOptions& options) {
  TORCH_CHECK_VALUE(!arguments.empty(),
                    "[tiled] arguments: expected a tensor to cut, got none. Pass it by value: what "
                    "std::ref passes is whole, in Python what a keyword names.");
  for (const auto i : c10::irange(arguments.size())) {
    const at::Tensor& tensor = arguments[i];
    TORCH_CHECK_VALUE(has_dim(tensor, options.dim), "[tiled] argument ", i,
                      ": expected a tensor with dimension ", options.dim, ", got one of ",
                      tensor.defined() ? tensor.dim() : 0,
                      " dimensions. Pass it whole: by std::ref, in Python by its keyword.");
    TORCH_CHECK_VALUE(tensor.size(options.dim) == arguments[0].size(options.dim),
                      "[tiled] argument ", i, ": expected ", arguments[0].size(options.dim),
                      " elements along dimension ", options.dim, ", as argument 0 has, got ",
                      tensor.size(options.dim),
                      ". Pass it whole: by std::ref, in Python by its keyword.");
  }
  return arguments[0].size(options.dim);
}

at::Tensor join_tiles(const std::vector<at::Tensor>& parts, int64_t length,
                      const TiledOptions& options) {
  const auto tiles = static_cast<int64_t>(parts.size());
  for (const auto i : c10::irange(tiles)) {
    TORCH_CHECK_VALUE(kind_of(parts[i]) == kind_of(parts[0]), "[tiled] result of tile ", i,
                      ": expected ", kind_of(parts[0]), ", as tile 0 has, got ", kind_of(parts[i]),
                      ". Return the same of each tile.");
  }
  if (!parts[0].defined()) return {};
  if (parts[0].dim() == 0) {
    at::Tensor sum = parts[0];
    for (int64_t i = 1; i < tiles; ++i) sum = at::add(sum, parts[i]);
    return sum;
  }
  for (int64_t i = 0; i < tiles; ++i) {
    const at::Tensor& part = parts[i];
    const int64_t expected = tile_range(length, tiles, i).length;
    TORCH_CHECK_VALUE(has_dim(part, options.dim) && part.size(options.dim) == expected,
                      "[tiled] result of tile ", i, ": expected a scalar, or ", expected,
                      " elements along dimension ", options.dim, ", as the tile has, got sizes ",
                      part.sizes(), ". Return the sum over the tile, or one element for each.");
  }
  return tiles == 1 ? parts[0] : at::cat(parts, options.dim);
}

}  // namespace remat::detail
