// SPDX-License-Identifier: BSD-3-Clause

// The first two calls of checkpoint(options)(fn)(args...).
#include "bindings.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <memory>
#include <string_view>
#include <utility>

#include <remat/backend/forward_region.h>

#include "docstrings.h"
#include "errors.h"
#include "function_wrapper.h"
#include "region_call.h"
#include "settings.h"

namespace remat::python {
namespace {

PyTypeObject* checkpoint_builder_type = nullptr;
PyTypeObject* checkpointed_type = nullptr;

PyObject* call_checkpointed(PyObject* object, PyObject* const* values, size_t flags,
                            PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto settings = std::static_pointer_cast<const Settings>(state_of(object));
  THPObjectPtr function(Py_XNewRef(function_of(object)));
  TORCH_CHECK(settings && function, "[checkpoint] this object has been cleared");
  return call_region(*settings, function, arguments_of(values, flags, keywords));
  END_HANDLE_TH_ERRORS
}

/// Rejects a class of modules: calling it would construct a module and compute nothing.
void check_no_module_class(PyObject* function) {
  static PyObject* module = nullptr;  // Note [Imports and the GIL]
  if (!PyType_Check(function)) return;
  if (!module) module = py::object(py::module_::import("torch.nn").attr("Module")).release().ptr();
  const int is_module_class = PyObject_IsSubclass(function, module);
  if (is_module_class < 0) throw python_error();
  const std::string name = reinterpret_cast<PyTypeObject*>(function)->tp_name;
  TORCH_CHECK_TYPE(!is_module_class,
                   "[checkpoint] fn: expected a module or a function, got the class ", name,
                   ". Pass an instance: ", name, "(...).");
}

PyObject* call_checkpoint_builder(PyObject* object, PyObject* const* values, size_t flags,
                                  PyObject* keywords) {
  HANDLE_TH_ERRORS
  const CallArguments arguments = arguments_of(values, flags, keywords);
  TORCH_CHECK_TYPE(arguments.count() == 1 && arguments.positional == 1,
                   "[checkpoint] fn: expected one function in the second call, got ",
                   arguments.count(),
                   " arguments. Write checkpoint(options)(fn)(args...): the arguments go into the "
                   "third.");
  TORCH_CHECK_TYPE(PyCallable_Check(values[0]), "[checkpoint] fn: expected a function, got ",
                   type_of(values[0]), ". Write checkpoint(options)(fn)(args...).");
  check_no_module_class(values[0]);
  return make_wrapper(checkpointed_type, call_checkpointed, state_of(object), values[0]);
  END_HANDLE_TH_ERRORS
}

void set_option(Settings& settings, PyObject* name, PyObject* value) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(name, &size);
  if (!bytes) throw python_error();
  set_option(settings, std::string_view(bytes, static_cast<size_t>(size)), value);
}

PyObject* make_builder(std::shared_ptr<Settings> settings) {
  detail::check_options(settings->options, "checkpoint");
  return make_wrapper(checkpoint_builder_type, call_checkpoint_builder, std::move(settings),
                      nullptr);
}

PyObject* checkpoint(PyObject* /*module*/, PyObject* const* values, Py_ssize_t count,
                     PyObject* keywords) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(
      count == 0, "[checkpoint] options: expected options by keyword in the first call, got ",
      type_of(values[0]),
      ". Write checkpoint(options)(fn)(args...), for example "
      "checkpoint(region_name=\"block\")(fn)(x), or checkpoint()(fn)(x); as a decorator "
      "@checkpoint(). For torch's form call torch_checkpoint(fn, x).");
  auto settings = std::make_shared<Settings>();
  const Py_ssize_t options = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  if (options == 0) return make_builder(std::move(settings));
  THPObjectPtr given(PyDict_New());
  if (!given) throw python_error();
  for (Py_ssize_t i = 0; i < options; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(keywords, i);
    set_option(*settings, name, values[i]);
    if (PyDict_SetItem(given, name, values[i]) < 0) throw python_error();
  }
  settings->keywords = share(given);
  return make_builder(std::move(settings));
  END_HANDLE_TH_ERRORS
}

/// Calls checkpoint(**keywords), and the result with the function if there is one; for pickle.
PyObject* rebuild(PyObject* module, PyObject* arguments) {
  PyObject* keywords = nullptr;
  PyObject* function = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!|O", &PyDict_Type, &keywords, &function)) return nullptr;
  THPObjectPtr first(PyObject_GetAttrString(module, "checkpoint"));
  THPObjectPtr none(PyTuple_New(0));
  if (!first || !none) return nullptr;
  THPObjectPtr builder(PyObject_Call(first, none, keywords));
  if (!builder || !function) return builder.release();
  return PyObject_CallOneArg(builder, function);
}

PyMethodDef checkpoint_functions[] = {
    {"checkpoint", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(checkpoint)),
     METH_FASTCALL | METH_KEYWORDS, kCheckpointDoc},
    {"_rebuild", rebuild, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void add_checkpoint(PyObject* module) {
  checkpoint_builder_type =
      make_wrapper_type("remat_meta._C.CheckpointBuilder",
                        "The result of checkpoint(options): call it with the function.");
  checkpointed_type =
      make_wrapper_type("remat_meta._C.Checkpointed", "A function whose calls are checkpointed.");
  checked(PyModule_AddType(module, checkpoint_builder_type));
  checked(PyModule_AddType(module, checkpointed_type));
  checked(PyModule_AddFunctions(module, checkpoint_functions));
}

}  // namespace remat::python
