// SPDX-License-Identifier: BSD-3-Clause

// Opens a named call around a call into Python.
#include "named_call_run.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <remat/backend/named_call_scope.h>

#include "hook_handle_ids.h"
#include "owned_object.h"
#include "remat_handle.h"
#include "warnings_now.h"

namespace remat::python {
namespace {

/// A call's result without its tensors; freed under the GIL on any thread.
std::shared_ptr<const ArgumentTree> make_holder(std::unique_ptr<const ArgumentTree> tree) {
  return {tree.release(), [](const ArgumentTree* held) {
            if (!interpreter_lives()) return;
            const pybind11::gil_scoped_acquire gil;
            delete held;
          }};
}

}  // namespace

Keep keep_of(const char* where, std::string_view text) {
  TORCH_CHECK_VALUE(text == "innermost_region" || text == "all_regions", "[", where,
                    "] keep: expected \"innermost_region\" or \"all_regions\", got \"", text,
                    "\".");
  return text == "all_regions" ? Keep::kAllRegions : Keep::kInnermostRegion;
}

CallResults take_apart(PyObject* output, const NamedCall& call, const char* where) {
  CallResults results;
  if (THPVariable_CheckExact(output)) {
    results.tensors.push_back(THPVariable_Unpack(output));
    return results;
  }
  std::vector<at::Tensor> tensors;
  auto tree = std::make_unique<const ArgumentTree>(CallArguments{&output, 1, /*keywords=*/nullptr},
                                                   tensors);
  const std::string other = tree->type_of_other_leaf();
  TORCH_CHECK(other.empty(), "[", where, "] ", call.str(),
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

// torch_remat rejects such a leaf for both policies. A RECOMPUTE call would create another leaf in
// the replay, whose gradient nobody sees.
void check_no_new_leaf(const CallResults& results, c10::ArrayRef<at::Tensor> arguments,
                       const NamedCall& call, const char* where) {
  for (const auto i : c10::irange(results.tensors.size())) {
    const at::Tensor& tensor = results.tensors[i];
    if (!tensor.defined() || !tensor.requires_grad() || !tensor.is_leaf() || tensor.is_view())
      continue;
    const bool is_argument =
        std::any_of(arguments.begin(), arguments.end(),
                    [&](const at::Tensor& argument) { return argument.is_same(tensor); });
    TORCH_CHECK(is_argument, "[", where, "] ", call.str(), ", result ", i,
                ": expected a tensor that fn computes; it returned a leaf tensor that requires "
                "grad. Make it outside of the call, or return a computation on it.");
  }
}

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
  std::optional<detail::NamedCallScope> scope;
  with_warnings_now([&] { scope.emplace(call, tensors); });
  if (scope->is_skipped()) return put_together(scope->results());
  const int64_t first_handle = call.is_saved() ? HookHandleIds::next() : 0;
  THPObjectPtr output;
  {
    const HandleBound bound;
    output = run();
  }
  if (!output) {
    const ErrorAside error;
    scope.reset();
    return nullptr;
  }
  if (call.is_saved() && HookHandleIds::next() != first_handle)
    HookHandleIds::note_in_forward_only();
  const CallResults results = take_apart(output, call, "native_op");
  check_no_new_leaf(results, tensors, call, "native_op");
  scope->finish(results);
  return output.release();
}

}  // namespace remat::python
