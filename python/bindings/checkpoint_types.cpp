// SPDX-License-Identifier: BSD-3-Clause

// The types behind checkpoint(). They are plain C types: a call of one costs as little as Python
// allows.
#include "checkpoint_types.h"

#include <c10/util/Exception.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include <remat/backend/forward_region.h>

#include "region_call.h"
#include "settings.h"

namespace remat::python {
namespace {

using SharedSettings = std::shared_ptr<const Settings>;

// What checkpoint(options) returns, and what that returns for a function. One layout serves both.
struct Checkpoint {
  PyObject_HEAD vectorcallfunc vectorcall;
  SharedSettings settings;
  PyObject* function;  // null in the first
  PyObject* dict;
  PyObject* weak_references;
};

PyTypeObject* builder_type = nullptr;
PyTypeObject* checkpointed_type = nullptr;

Checkpoint* as_checkpoint(PyObject* self) {
  return reinterpret_cast<Checkpoint*>(self);
}

PyObject* make(PyTypeObject* type, vectorcallfunc call, SharedSettings settings,
               PyObject* function) {
  auto* const self = reinterpret_cast<Checkpoint*>(type->tp_alloc(type, 0));
  if (!self) throw python_error();
  self->vectorcall = call;
  new (&self->settings) SharedSettings(std::move(settings));
  self->function = Py_XNewRef(function);
  return reinterpret_cast<PyObject*>(self);
}

// True if nothing but `settings` holds its Python objects: then they are what this object holds.
bool holds_objects_alone(const SharedSettings& settings) {
  if (!settings || settings.use_count() > 1) return false;
  const auto& hooks = settings->options.state_hooks;
  return std::all_of(settings->objects.begin(), settings->objects.end(),
                     [](const SharedObject& object) { return object.use_count() == 2; }) &&
         std::all_of(hooks.begin(), hooks.end(),
                     [](const auto& hook) { return hook.use_count() == 1; });
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  const Checkpoint* const self = as_checkpoint(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->dict);
  if (!holds_objects_alone(self->settings)) return 0;
  for (const SharedObject& held : self->settings->objects) Py_VISIT(held->get());
  if (self->settings->keywords) Py_VISIT(self->settings->keywords->get());
  return 0;
}

int clear(PyObject* object) {
  Checkpoint* const self = as_checkpoint(object);
  Py_CLEAR(self->function);
  Py_CLEAR(self->dict);
  self->settings.reset();
  return 0;
}

void deallocate(PyObject* object) {
  Checkpoint* const self = as_checkpoint(object);
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weak_references) PyObject_ClearWeakRefs(object);
  clear(object);
  self->settings.~SharedSettings();
  type->tp_free(object);
  Py_DECREF(type);
}

CallArguments arguments_of(PyObject* const* values, size_t flags, PyObject* keywords) {
  return {values, static_cast<size_t>(PyVectorcall_NARGS(flags)), keywords};
}

PyObject* call_checkpointed(PyObject* object, PyObject* const* values, size_t flags,
                            PyObject* keywords) {
  HANDLE_TH_ERRORS
  const SharedSettings settings = as_checkpoint(object)->settings;
  THPObjectPtr function(Py_XNewRef(as_checkpoint(object)->function));
  TORCH_CHECK(settings && function, "[checkpoint] this object has been cleared");
  return call_region(*settings, function, arguments_of(values, flags, keywords));
  END_HANDLE_TH_ERRORS
}

PyObject* call_builder(PyObject* object, PyObject* const* values, size_t flags,
                       PyObject* keywords) {
  HANDLE_TH_ERRORS
  const CallArguments arguments = arguments_of(values, flags, keywords);
  TORCH_CHECK_TYPE(arguments.count() == 1 && arguments.positional == 1,
                   "[checkpoint] fn: expected one function in the second call, got ",
                   arguments.count(),
                   " arguments. Write checkpoint(options)(fn)(args...): the arguments go into the "
                   "third.");
  TORCH_CHECK_TYPE(PyCallable_Check(values[0]), "[checkpoint] fn: expected a function, got ",
                   Py_TYPE(values[0])->tp_name, ". Write checkpoint(options)(fn)(args...).");
  return make(checkpointed_type, call_checkpointed, as_checkpoint(object)->settings, values[0]);
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
  return make(builder_type, call_builder, std::move(settings), nullptr);
}

PyObject* checkpoint(PyObject* /*module*/, PyObject* const* values, Py_ssize_t count,
                     PyObject* keywords) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 0,
                   "[checkpoint] options: expected options by keyword in the first call, got ",
                   Py_TYPE(values[0])->tp_name,
                   ". Write checkpoint(options)(fn)(args...), for example "
                   "checkpoint(region_name=\"block\")(fn)(x), or checkpoint()(fn)(x).");
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

/// checkpoint(**keywords), and of a function if there is one: for pickle.
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

PyObject* keywords_of(const Checkpoint& self) {
  if (self.settings && self.settings->keywords) return Py_NewRef(self.settings->keywords->get());
  return PyDict_New();
}

// The name under which `object` can be imported, new; null, without an error, if there is none.
PyObject* global_name(PyObject* object) {
  THPObjectPtr name(PyObject_GetAttrString(object, "__qualname__"));
  THPObjectPtr module_name(name ? PyObject_GetAttrString(object, "__module__") : nullptr);
  THPObjectPtr module(module_name ? PyImport_GetModule(module_name) : nullptr);
  THPObjectPtr found(module ? PyObject_GetAttr(module, name) : nullptr);
  PyErr_Clear();
  return found.get() == object ? name.release() : nullptr;
}

// A decorated function is pickled by its name, as functions are; another one by its parts.
PyObject* reduce(PyObject* object, PyObject* /*unused*/) {
  const Checkpoint& self = *as_checkpoint(object);
  if (self.function) {
    if (PyObject* const name = global_name(object)) return name;
  }
  THPObjectPtr module(PyImport_ImportModule("remat_meta._C"));
  THPObjectPtr rebuilder(module ? PyObject_GetAttrString(module, "_rebuild") : nullptr);
  THPObjectPtr keywords(keywords_of(self));
  if (!rebuilder || !keywords) return nullptr;
  if (!self.function) return Py_BuildValue("O(O)", rebuilder.get(), keywords.get());
  return Py_BuildValue("O(OO)", rebuilder.get(), keywords.get(), self.function);
}

PyObject* show(PyObject* object) {
  const Checkpoint& self = *as_checkpoint(object);
  THPObjectPtr keywords(keywords_of(self));
  if (!keywords) return nullptr;
  if (!self.function) return PyUnicode_FromFormat("<checkpoint with %R>", keywords.get());
  return PyUnicode_FromFormat("<checkpoint with %R of %R>", keywords.get(), self.function);
}

// As functools.wraps would set them.
bool belongs_to_function(std::string_view name) {
  constexpr std::array<std::string_view, 7> kNames{
      "__module__",  "__name__",        "__qualname__",   "__doc__",
      "__wrapped__", "__annotations__", "__type_params__"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

PyObject* get_attribute(PyObject* object, PyObject* name) {
  const Checkpoint& self = *as_checkpoint(object);
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(name, &size);
  if (!bytes) return nullptr;
  const std::string_view text(bytes, static_cast<size_t>(size));
  if (belongs_to_function(text) && self.function) {
    PyObject* const own = self.dict ? PyDict_GetItemWithError(self.dict, name) : nullptr;
    if (own) return Py_NewRef(own);
    if (PyErr_Occurred()) return nullptr;
    if (text == "__wrapped__") return Py_NewRef(self.function);
    return PyObject_GetAttr(self.function, name);
  }
  PyObject* const found = PyObject_GenericGetAttr(object, name);
  const bool is_dunder = text.substr(0, 2) == "__";
  if (found || is_dunder || !self.function || !PyErr_ExceptionMatches(PyExc_AttributeError))
    return found;
  PyErr_Clear();
  return PyObject_GetAttr(self.function, name);
}

PyObject* bind(PyObject* object, PyObject* instance, PyObject* /*type*/) {
  if (!instance || instance == Py_None) return Py_NewRef(object);
  return PyMethod_New(object, instance);
}

template <class T>
void* slot(T* function) {
  return reinterpret_cast<void*>(function);
}

PyMethodDef pickle_method[] = {{"__reduce__", reduce, METH_NOARGS, nullptr},
                               {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Checkpoint, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(Checkpoint, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Checkpoint, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject* make_type(const char* name, const char* doc) {
  PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(doc)},
                         {Py_tp_call, slot(PyVectorcall_Call)},
                         {Py_tp_traverse, slot(traverse)},
                         {Py_tp_clear, slot(clear)},
                         {Py_tp_dealloc, slot(deallocate)},
                         {Py_tp_repr, slot(show)},
                         {Py_tp_getattro, slot(get_attribute)},
                         {Py_tp_setattro, slot(PyObject_GenericSetAttr)},
                         {Py_tp_descr_get, slot(bind)},
                         {Py_tp_methods, pickle_method},
                         {Py_tp_members, members},
                         {0, nullptr}};
  PyType_Spec spec{name, sizeof(Checkpoint), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                       Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
                   slots};
  PyObject* const type = PyType_FromSpec(&spec);
  if (!type) throw python_error();
  return reinterpret_cast<PyTypeObject*>(type);
}

PyMethodDef functions[] = {
    {"checkpoint", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(checkpoint)),
     METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_rebuild", rebuild, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void add_checkpoint(PyObject* module) {
  builder_type = make_type("remat_meta._C.CheckpointBuilder",
                           "What checkpoint(options) returns: call it with the function.");
  checkpointed_type =
      make_type("remat_meta._C.Checkpointed", "A function whose calls are checkpointed.");
  const bool failed = PyModule_AddObjectRef(module, "CheckpointBuilder",
                                            reinterpret_cast<PyObject*>(builder_type)) < 0 ||
                      PyModule_AddObjectRef(module, "Checkpointed",
                                            reinterpret_cast<PyObject*>(checkpointed_type)) < 0 ||
                      PyModule_AddFunctions(module, functions) < 0;
  if (failed) throw python_error();
}

}  // namespace remat::python
