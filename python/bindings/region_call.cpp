// SPDX-License-Identifier: BSD-3-Clause

// Opening a region around a call into Python.
#include "region_call.h"

#include <torch/csrc/utils/object_ptr.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <remat/backend/forward_region.h>

#include "owned_object.h"
#include "python_body.h"
#include "python_state.h"

namespace remat::python {
namespace {

PyObject* call(PyObject* function, const CallArguments& arguments) {
  return PyObject_Vectorcall(function, arguments.values, arguments.positional, arguments.keywords);
}

PyObject* call_plainly(const Settings& settings, PyObject* function,
                       const CallArguments& arguments) {
  THPObjectPtr output(call(function, arguments));
  if (!output || settings.output_rule == OutputRule::kAnyLeaf) return output.release();
  std::vector<at::Tensor> tensors;
  take_output(output, settings.output_rule, settings.options.name, tensors);
  return output.release();
}

}  // namespace

PyObject* call_region(const Settings& settings, PyObject* function,
                      const CallArguments& arguments) {
  if (!detail::records_regions()) return call_plainly(settings, function, arguments);
  std::vector<at::Tensor> tensors;
  auto body = std::make_unique<PythonBody>(function, arguments, settings.options.name, tensors);
  std::optional<detail::ForwardRegion> region(std::in_place, settings.options, std::move(body),
                                              tensors);
  THPObjectPtr output;
  {
    const CompilerAside compiler;
    output = call(function, arguments);
  }
  if (!output) {
    const ErrorAside error;
    region.reset();
    return nullptr;
  }
  tensors.clear();
  take_output(output, settings.output_rule, settings.options.name, tensors);
  region->finish(tensors);
  return output.release();
}

}  // namespace remat::python
