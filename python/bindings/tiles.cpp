// SPDX-License-Identifier: BSD-3-Clause

// The functions that Python's tiled() calls: see remat/backend/tiled.h.
#include "bindings.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

#include <remat/backend/tiled.h>

namespace remat::python {
void add_tiles(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module>(module);
  m.def("_runs_in_segments", torch::wrap_pybind_function(detail::runs_in_segments));
  m.def("_check_tiles", torch::wrap_pybind_function(
                            [](int64_t tiles) { detail::check_tiled_options({.tiles = tiles}); }));
  m.def("_tiled_length",
        torch::wrap_pybind_function([](const std::vector<at::Tensor>& arguments, int64_t dim) {
          return detail::tiled_length(arguments, {.dim = dim});
        }));
  m.def("_tile_range",
        torch::wrap_pybind_function([](int64_t length, int64_t tiles, int64_t number) {
          const detail::TileRange range = detail::tile_range(length, tiles, number);
          return std::pair(range.first, range.length);
        }));
  m.def("_join_tiles", torch::wrap_pybind_function(
                           [](const std::vector<at::Tensor>& parts, int64_t length, int64_t dim) {
                             return detail::join_tiles(parts, length, {.dim = dim});
                           }));
}

}  // namespace remat::python
