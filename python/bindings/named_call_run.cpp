// SPDX-License-Identifier: BSD-3-Clause

// Opening a named call around a call into Python.
#include "named_call_run.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <remat/backend/named_call_scope.h>

#include "owned_object.h"

namespace remat::python {
namespace {

/// What a call returned without its tensors; freed under the GIL on any thread.
std::shared_ptr<const ArgumentTree> make_holder(std::unique_ptr<const ArgumentTree> tree) {
  return {tree.release(), [](const ArgumentTree* held) {
            if (!interpreter_lives()) return;
            const pybind11::gil_scoped_acquire gil;
            delete held;
          }};
}

CallResults take_apart(PyObject* output, const NamedCall& call) {
  CallResults results;
  if (THPVariable_CheckExact(output)) {
    results.tensors.push_back(THPVariable_Unpack(output));
    return results;
  }
  std::vector<at::Tensor> tensors;
  auto tree = std::make_unique<const ArgumentTree>(CallArguments{&output, 1, /*keywords=*/nullptr},
                                                   tensors);
  const char* const other = tree->type_of_other_leaf();
  TORCH_CHECK(!other, "[native_op] ", call.str(),
              ": fn must return a Tensor, None, or a nesting of tuples, lists and dicts of them; "
              "got ",
              other, ". Return other values another way.");
  results.tensors.append(tensors.begin(), tensors.end());
  results.holder = make_holder(std::move(tree));
  return results;
}

PyObject* put_together(const CallResults& results) {
  if (!results.holder) return THPVariable_Wrap(results.tensors[0]);
  return static_cast<const ArgumentTree*>(results.holder.get())->build_one(results.tensors);
}

}  // namespace

PyObject* run_named_call(const NamedCall& call, PyObject* function,
                         const CallArguments& arguments) {
  const auto run = [&] {
    return PyObject_Vectorcall(function, arguments.values, arguments.positional,
                               arguments.keywords);
  };
  if (!detail::is_in_region()) return run();
  std::vector<at::Tensor> tensors;
  for (const auto i : c10::irange(arguments.count()))
    take_output(arguments.values[i], OutputRule::kAnyLeaf, call.name, tensors);
  std::optional<detail::NamedCallScope> scope(std::in_place, call, tensors);
  if (scope->is_skipped()) return put_together(scope->results());
  THPObjectPtr output(run());
  if (!output) {
    const ErrorAside error;
    scope.reset();
    return nullptr;
  }
  scope->finish(take_apart(output, call));
  return output.release();
}

}  // namespace remat::python
