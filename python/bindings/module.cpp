// SPDX-License-Identifier: BSD-3-Clause

// The extension module remat_meta._C. Loading it registers nothing with the dispatcher and installs
// no engine: see before_region.h.
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include <utility>
#include <vector>

#include <remat/backend/inner_backward.h>
#include <remat/backend/register_device.h>
#include <remat/backend/tiled.h>
#include <remat/engine/backward_observer.h>
#include <remat/engine/blocking_wait.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/region.h>
#include <remat/engine/replayed_nodes.h>
#include <remat/engine/scope.h>
#include <remat/placeholder/placeholder.h>

#include "bindings.h"
#include "docstrings.h"
#include "errors.h"
#include "named_calls.h"
#include "owned_object.h"
#include "policy_table.h"
#include "python_state.h"
#include "tensor_hooks.h"

namespace remat::python {
namespace {

EdgeList edges_of(const std::vector<at::Tensor>& tensors) {
  EdgeList edges;
  for (const at::Tensor& tensor : tensors)
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  return edges;
}

/// Runs a backward with create_graph outside of regions. Gives its nodes the numbers that they
/// would have without replays: see Note [Numbers on autograd's threads]. `accumulates`: true if the
/// backward adds to the .grad of leaves.
pybind11::object run_with_plain_numbers(const pybind11::function& run,
                                        const std::vector<at::Tensor>& roots, bool accumulates,
                                        const pybind11::args& args,
                                        const pybind11::kwargs& kwargs) {
  const NumberedNodes nodes;
  pybind11::object results = run(*args, **kwargs);
  if (accumulates) {
    nodes.number_grads(edges_of(roots));
    return results;
  }
  std::vector<at::Tensor> gradients;
  for (const pybind11::handle result : results) {
    if (THPVariable_Check(result.ptr())) gradients.push_back(THPVariable_Unpack(result.ptr()));
  }
  nodes.number(gradients);
  return results;
}

/// Calls `wait`. Releases the GIL meanwhile, because the thread that `wait` waits for may need it.
void wait_without_gil(c10::function_ref<void()> wait) {
  if (!interpreter_lives() || !PyGILState_Check()) return wait();
  const pybind11::gil_scoped_release released;
  wait();
}

/// The functions that Python's tiled() calls: see remat/backend/tiled.h.
void add_tiles(py::module_& m) {
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

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "C++ half of remat_meta.";
  m.attr("torch_version") = TORCH_VERSION;
  m.attr("version") = REMAT_VERSION;
  add_errors(m.ptr());
  add_checkpoint(m.ptr());
  add_named_calls(m.ptr());
  add_in_graph(m.ptr());
  add_compiled_graph(m.ptr());
  add_custom_functions(m.ptr());
  add_remat_handle(m.ptr());
  add_reports(m.ptr());
  add_saved_tensors_hooks(m.ptr());
  add_policy_table(m.ptr());
  add_offload(m.ptr());
  add_budget(m.ptr());
  add_functional_calls(m.ptr());
  add_tiles(m);
  add_ranks(m.ptr());
  set_blocking_wait(wait_without_gil);
  count_hooks_in_dicts();
  install_tensor_classes();
  find_python_places();

  m.def("_in_scope", [] { return Scope::current() != nullptr; });
  m.def("_in_replay", &Scope::is_in_replay);
  m.def("_stand_in", torch::wrap_pybind_function([](const at::Tensor& tensor) {
          return OpObserver::current_stand_in(tensor);
        }));
  m.def("_on_this_thread", [](const pybind11::function& run, const pybind11::args& args,
                              const pybind11::kwargs& kwargs) {
    const detail::OnThisThread on_this_thread;
    return run(*args, **kwargs);
  });
  m.def("_with_plain_numbers", torch::wrap_pybind_function(&run_with_plain_numbers));
  m.def("_before_backward",
        torch::wrap_pybind_function([](const std::vector<at::Tensor>& roots,
                                       const std::vector<at::Tensor>& ends, bool accumulates) {
          detail::before_backward_inside(edges_of(roots), edges_of(ends), accumulates);
        }));
  m.def("_after_backward",
        torch::wrap_pybind_function([](const std::vector<at::Tensor>& gradients) {
          detail::after_backward_inside(gradients);
        }));
  m.def("live_region_count", [] { return live_regions().size(); });
  m.def("is_recomputing", &is_recomputing, kIsRecomputingDoc);
  add_entries(m.ptr());
  m.def("is_placeholder", torch::wrap_pybind_function([](const at::Tensor& tensor) {
          return is_placeholder(tensor);
        }),
        kIsPlaceholderDoc);
  m.def("register_device", torch::wrap_pybind_function(register_device));
}

}  // namespace remat::python
