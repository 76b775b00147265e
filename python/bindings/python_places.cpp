// SPDX-License-Identifier: BSD-3-Clause

// Finds the line of Python code that is running.
#include "bindings.h"

#include <pybind11/pybind11.h>

#include <string>
#include <unordered_map>

#include <remat/inspect/source_places.h>

#include "owned_object.h"

namespace py = pybind11;

namespace remat::python {
namespace {

/// The folder of a package, with a trailing slash.
std::string folder_of(const char* package) {
  const auto file = py::module_::import(package).attr("__file__").cast<std::string>();
  return file.substr(0, file.rfind('/') + 1);
}

/// True if the thread runs Python, even if it has released the GIL, as PyTorch does for each op.
bool runs_python() {
  return Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr;
}

/// Returns the text attribute `name` of `code`. Escapes bytes that are not UTF-8, as in file names.
std::string text_of(PyCodeObject* code, const char* name) {
  const py::object text = py::handle(reinterpret_cast<PyObject*>(code)).attr(name);
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (bytes) return bytes;
  PyErr_Clear();
  return "?";
}

/// Identifies a place by a code object and an instruction in it.
class PythonPlaces final : public SourcePlaces {
 public:
  SourcePlace here() override {
    if (!runs_python()) return {};
    const py::gil_scoped_acquire gil;
    const ErrorAside error;
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame) {
      auto* const here = reinterpret_cast<PyFrameObject*>(frame.ptr());
      PyCodeObject* const code = PyFrame_GetCode(here);
      const bool is_program = knows_as_program(code);
      Py_DECREF(code);
      if (is_program) return {code, PyFrame_GetLasti(here)};
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
    }
    return {};
  }

  std::string text(const SourcePlace& place) override {
    if (!runs_python()) return "";
    const py::gil_scoped_acquire gil;
    const ErrorAside error;
    auto* const code = static_cast<PyCodeObject*>(const_cast<void*>(place.code));
    const py::handle object(reinterpret_cast<PyObject*>(code));
    const char* const name = py::hasattr(object, "co_qualname") ? "co_qualname" : "co_name";
    return text_of(code, "co_filename") + ":" +
           std::to_string(PyCode_Addr2Line(code, static_cast<int>(place.at))) + " " +
           text_of(code, name);
  }

 private:
  bool knows_as_program(PyCodeObject* code) {
    if (const auto known = known_.find(code); known != known_.end()) return known->second;
    if (torch_.empty()) {
      torch_ = folder_of("torch");
      remat_ = folder_of("remat_meta");
    }
    const std::string file = text_of(code, "co_filename");
    const bool is_program =
        file.rfind(torch_, 0) != 0 && file.rfind(remat_, 0) != 0 && file.rfind("<frozen", 0) != 0;
    // Do not use the iterator from above here, because text_of() may run ops, which change the map.
    // The reference to `code` keeps its address from being reused.
    if (known_.emplace(code, is_program).second) Py_INCREF(code);
    return is_program;
  }

  std::string torch_;  // folders of packages
  std::string remat_;
  std::unordered_map<PyCodeObject*, bool> known_;  // true: code of the program; guarded by the GIL
};

}  // namespace

void find_python_places() {
  if (!SourcePlaces::of_python()) SourcePlaces::set_python(new PythonPlaces);
}

}  // namespace remat::python
