// SPDX-License-Identifier: BSD-3-Clause

// Implements the type slots of a wrapper type.
#include "function_wrapper.h"

#include <structmember.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "errors.h"

namespace remat::python {
namespace {

using SharedState = std::shared_ptr<const WrapperState>;

struct Wrapper {
  PyObject_HEAD vectorcallfunc vectorcall;
  SharedState state;
  PyObject* function;  // may be null
  PyObject* dict;
  PyObject* weak_references;
};

Wrapper* as_wrapper(PyObject* self) {
  return reinterpret_cast<Wrapper*>(self);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  const Wrapper* const self = as_wrapper(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->dict);
  const bool is_only_owner = self->state && self->state.use_count() == 1;
  return is_only_owner ? self->state->traverse(visit, arg) : 0;
}

int clear(PyObject* object) {
  Wrapper* const self = as_wrapper(object);
  Py_CLEAR(self->function);
  Py_CLEAR(self->dict);
  self->state.reset();
  return 0;
}

void deallocate(PyObject* object) {
  Wrapper* const self = as_wrapper(object);
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weak_references) PyObject_ClearWeakRefs(object);
  clear(object);
  self->state.~SharedState();
  type->tp_free(object);
  Py_DECREF(type);
}

// Returns the name under which `object` can be imported, as a new reference; null, without an error
// set, if there is no such name.
PyObject* global_name(PyObject* object) {
  THPObjectPtr name(PyObject_GetAttrString(object, "__qualname__"));
  THPObjectPtr module_name(name ? PyObject_GetAttrString(object, "__module__") : nullptr);
  THPObjectPtr module(module_name ? PyImport_GetModule(module_name) : nullptr);
  THPObjectPtr found(module ? PyObject_GetAttr(module, name) : nullptr);
  PyErr_Clear();
  return found.get() == object ? name.release() : nullptr;
}

// Pickles a decorated function by its name, as Python does, and any other wrapper by its parts.
PyObject* reduce(PyObject* object, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  const Wrapper& self = *as_wrapper(object);
  if (self.function) {
    if (PyObject* const name = global_name(object)) return name;
  }
  return self.state->reduce(self.function);
  END_HANDLE_TH_ERRORS
}

PyObject* show(PyObject* object) {
  const Wrapper& self = *as_wrapper(object);
  THPObjectPtr text(self.state->show());
  if (!text) return nullptr;
  if (!self.function) return PyUnicode_FromFormat("<%U>", text.get());
  return PyUnicode_FromFormat("<%U of %R>", text.get(), self.function);
}

// The attributes that functools.wraps sets.
bool belongs_to_function(std::string_view name) {
  constexpr std::array<std::string_view, 7> kNames{
      "__module__",  "__name__",        "__qualname__",   "__doc__",
      "__wrapped__", "__annotations__", "__type_params__"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

PyObject* graph_key_maker = nullptr;  // never freed

// Returns the attribute "_graph_key": see Note [In compiled code].
PyObject* get_graph_key(PyObject* object, PyObject* name) {
  Wrapper& self = *as_wrapper(object);
  if (!self.dict && !(self.dict = PyDict_New())) return nullptr;
  PyObject* const known = PyDict_GetItemWithError(self.dict, name);
  if (known || PyErr_Occurred()) return Py_XNewRef(known);
  if (!graph_key_maker) return PyObject_GenericGetAttr(object, name);
  THPObjectPtr made(PyObject_CallOneArg(graph_key_maker, object));
  if (!made || PyDict_SetItem(self.dict, name, made) < 0) return nullptr;
  return made.release();
}

PyObject* get_attribute(PyObject* object, PyObject* name) {
  const Wrapper& self = *as_wrapper(object);
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
  if (text == "_graph_key") return get_graph_key(object, name);
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

PyObject* stay(PyObject* object, PyObject* /*instance*/, PyObject* /*type*/) {
  return Py_NewRef(object);
}

template <class T>
void* slot(T* function) {
  return reinterpret_cast<void*>(function);
}

PyMethodDef pickle_method[] = {{"__reduce__", reduce, METH_NOARGS, nullptr},
                               {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Wrapper, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(Wrapper, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Wrapper, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

PyTypeObject* add_wrapper_type(PyObject* module, const char* name, const char* doc, bool binds) {
  PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(doc)},
                         {Py_tp_call, slot(PyVectorcall_Call)},
                         {Py_tp_traverse, slot(traverse)},
                         {Py_tp_clear, slot(clear)},
                         {Py_tp_dealloc, slot(deallocate)},
                         {Py_tp_repr, slot(show)},
                         {Py_tp_getattro, slot(get_attribute)},
                         {Py_tp_setattro, slot(PyObject_GenericSetAttr)},
                         {Py_tp_descr_get, slot(binds ? bind : stay)},
                         {Py_tp_methods, pickle_method},
                         {Py_tp_members, members},
                         {0, nullptr}};
  PyType_Spec spec{name, sizeof(Wrapper), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                       Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
                   slots};
  auto* const type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, type));
  return type;
}

PyObject* make_wrapper(PyTypeObject* type, vectorcallfunc call, SharedState state,
                       PyObject* function) {
  auto* const self = reinterpret_cast<Wrapper*>(type->tp_alloc(type, 0));
  if (!self) throw python_error();
  self->vectorcall = call;
  new (&self->state) SharedState(std::move(state));
  self->function = Py_XNewRef(function);
  return reinterpret_cast<PyObject*>(self);
}

const SharedState& state_of(PyObject* wrapper) {
  return as_wrapper(wrapper)->state;
}

PyObject* function_of(PyObject* wrapper) {
  return as_wrapper(wrapper)->function;
}

void set_graph_key_maker(PyObject* make) {
  graph_key_maker = Py_NewRef(make);
}

CallArguments arguments_of(PyObject* const* values, size_t flags, PyObject* keywords) {
  return {values, static_cast<size_t>(PyVectorcall_NARGS(flags)), keywords};
}

}  // namespace remat::python
