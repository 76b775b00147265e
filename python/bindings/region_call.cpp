// SPDX-License-Identifier: BSD-3-Clause

// Opens a region around a call into Python.
#include "region_call.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/backend/forward_region.h>
#include <remat/engine/region_label.h>

#include "agreement.h"
#include "first_use.h"
#include "owned_object.h"
#include "python_body.h"
#include "python_state.h"
#include "remat_handle.h"
#include "sharded_modules.h"

namespace remat::python {
namespace {

/// True while torch.fx traces, with proxies in place of tensors. It is the counterpart of
/// records_regions() for code that calls no op.
bool fx_traces() {
  static PyObject* module = nullptr;  // Note [Imports and the GIL]
  static PyObject* const name = PyUnicode_InternFromString("_is_fx_tracing_flag");
  static PyObject* const of_threads = PyUnicode_InternFromString("_is_fx_tracing_tls");
  static PyObject* const name_in_thread = PyUnicode_InternFromString("flag");
  if (!module)
    module = PyModule_GetDict(py::module_::import("torch.fx._symbolic_trace").release().ptr());
  PyObject* flag = PyDict_GetItemWithError(module, name);
  if (!flag) {  // one per thread since 2.14
    PyObject* const threads = PyDict_GetItemWithError(module, of_threads);
    THPObjectPtr own(threads ? PyObject_GetAttrString(threads, "__dict__") : nullptr);
    flag = own ? PyDict_GetItemWithError(own.get(), name_in_thread) : nullptr;
  }
  return flag && PyObject_IsTrue(flag) == 1;
}

PyObject* call_plainly(const Settings& settings, PyObject* function,
                       const CallArguments& arguments) {
  THPObjectPtr output(arguments.pass_to(function));
  if (!output || settings.output_rule == OutputRule::kAnyLeaf || fx_traces())
    return output.release();
  std::vector<at::Tensor> tensors;
  take_output(output, settings.output_rule, settings.options.name, tensors);
  return output.release();
}

/// True inside a transform of torch.func, and where tensors may have tangents.
///
/// Note [Regions in transforms]: each level of grad, vmap, jvp... has a graph and tensors of its
/// own. A replay would have to find the same levels again, and saved tensors have no hooks there.
/// So regions are plain calls: results are right, and nothing is recomputed.
bool transforms() {
  constexpr auto key = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;
  return c10::impl::tls_is_dispatch_key_included(key) ||
         torch::autograd::ForwardADLevel::try_get_by_idx(0);
}

void warn_of_transform(const std::string& region) {
  TORCH_WARN_ONCE("[checkpoint] ", region_label(region),
                  ": called inside of a transform of torch.func or a level of forward-mode AD, "
                  "where regions are plain "
                  "calls: results are right, nothing is recomputed. This is said once.");
}

}  // namespace

PyObject* call_region(const Settings& settings, PyObject* function,
                      const CallArguments& arguments) {
  if (!detail::records_regions() || fx_traces()) return call_plainly(settings, function, arguments);
  if (transforms()) {
    warn_of_transform(settings.options.name);
    return call_plainly(settings, function, arguments);
  }
  before_first_region();
  tell_fsdp_of_regions();
  tell_agreement(settings, function);
  std::vector<at::Tensor> tensors;
  auto body = std::make_unique<PythonBody>(function, arguments, settings.options.name, tensors);
  PythonBody& running = *body;
  std::optional<detail::ForwardRegion> region(std::in_place, settings.options, std::move(body),
                                              tensors);
  const bool grad_mode = c10::GradMode::is_enabled();
  THPObjectPtr output;
  {
    const HandleBound bound;
    const CompilerAside compiler;
    output = arguments.pass_to(function);
  }
  if (!output) {
    // The code that the compiler generated for the function switches grad mode off and on by two
    // ops, and may end between them.
    c10::GradMode::set_enabled(grad_mode);
    const ErrorAside error;
    region.reset();
    return nullptr;
  }
  running.finish_forward();
  tensors.clear();
  take_output(output, settings.output_rule, settings.options.name, tensors);
  region->finish(tensors);
  region.reset();
  return output.release();
}

}  // namespace remat::python
