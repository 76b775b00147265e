// SPDX-License-Identifier: BSD-3-Clause

// Reports and traces as Python objects.
#include "bindings.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/inspect/call_trace.h>
#include <remat/inspect/memory_meter.h>
#include <remat/inspect/memory_report.h>
#include <remat/inspect/recorder.h>
#include <remat/inspect/region_saves.h>
#include <remat/inspect/region_tapes.h>
#include <remat/inspect/saved_tensors_report.h>
#include <remat/recording/html_report.h>

#include "docstrings.h"
#include "errors.h"
#include "owned_object.h"
#include "policy_table.h"

namespace remat::python {
namespace {

using Visit = std::function<void(const at::Tensor&)>;

void visit_value(py::handle value, const Visit& visit) {
  if (py::isinstance<py::tuple>(value)) {
    for (const py::handle part : value) visit_value(part, visit);
    return;
  }
  if (!py::isinstance<torch::autograd::SavedVariable>(value)) return;
  const auto& saved = value.cast<const torch::autograd::SavedVariable&>();
  // nullopt if hooks hold the tensor, undefined if the tensor has been freed.
  const std::optional<at::Tensor> tensor = saved.get_raw_data();
  if (tensor && tensor->defined()) visit(*tensor);
}

/// Visits the tensors that a node has saved, without unpacking them: see VisitSaved. Reads the
/// node's Python attributes, which nodes of C++ custom functions do not have. Some attributes raise
/// once the node has been freed, and then nothing is saved. Call under the GIL.
void visit_saved(const GraphNode& node, const Visit& visit) {
  const auto object = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(node));
  if (!object) return PyErr_Clear();
  const py::object dir = py::module_::import("builtins").attr("dir");
  for (const py::handle name : dir(py::type::handle_of(object))) {
    if (!name.cast<std::string>().starts_with("_raw_saved_")) continue;
    if (PyObject* const value = PyObject_GetAttr(object.ptr(), name.ptr()))
      visit_value(py::reinterpret_steal<py::object>(value), visit);
    PyErr_Clear();
  }
}

Annotate as_annotate(const py::object& annotate) {
  if (annotate.is_none()) return {};
  TORCH_CHECK_TYPE(PyCallable_Check(annotate.ptr()),
                   "[report] annotate: expected a function that takes a Tensor, got ",
                   type_of(annotate.ptr()), ".");
  return [annotate](const at::Tensor& tensor) {
    const py::object words = annotate(tensor);
    return words.is_none() ? std::string() : words.cast<std::string>();
  };
}

std::string current_memory_report(const py::object& annotate) {
  const std::optional<RegionSaves> saves = current_region_saves();
  TORCH_CHECK(saves,
              "[format_current_memory_report] No active remat checkpoint region: expected a call "
              "inside the function of one. Outside, format_saved_tensors_report() shows all of "
              "them.");
  return saves->str(as_annotate(annotate));
}

std::string saved_report(const std::optional<std::vector<at::Tensor>>& roots,
                         const py::object& annotate) {
  return saved_tensors_report(roots, visit_saved).str(as_annotate(annotate));
}

/// Makes a trace of the named calls for which `applies`, called under the GIL, returns true.
std::unique_ptr<CallTrace> make_call_trace(const py::function& applies) {
  SharedObject shared = share(applies.ptr());
  return std::make_unique<CallTrace>([shared = std::move(shared)] {
    if (!interpreter_lives()) return false;
    const py::gil_scoped_acquire gil;
    return py::handle(shared->get())().cast<bool>();
  });
}

/// Returns (name, policy, None) for each call and (name, metadata, entries) for each scope.
py::list entries_of(const std::vector<CallTraceEntry>& entries) {
  py::list list;
  for (const CallTraceEntry& entry : entries) {
    if (entry.is_scope) {
      list.append(py::make_tuple(entry.name, entry.metadata, entries_of(entry.entries)));
    } else {
      list.append(py::make_tuple(entry.name, py::handle(object_of(entry.policy)), py::none()));
    }
  }
  return list;
}

void add_memory_report(py::module_& m) {
  py::class_<MemoryRow>(m, "MemoryRow", "A tensor that a region holds.")
      .def_readonly("name", &MemoryRow::name)
      .def_readonly("tensor", &MemoryRow::tensor)
      .def_readonly("why", &MemoryRow::why)
      .def_readonly("bytes", &MemoryRow::bytes)
      .def_readonly("implicit", &MemoryRow::implicit)
      .def("__repr__", [](const MemoryRow& row) {
        return "<" + row.name + ": " + row.tensor + ", " + std::to_string(row.bytes) + " bytes>";
      });
  py::class_<RegionMemory>(m, "RegionMemory", "All that one region holds; iterates over its rows.")
      .def_readonly("region", &RegionMemory::region)
      .def_readonly("slots", &RegionMemory::slots)
      .def_readonly("bytes", &RegionMemory::bytes)
      .def_readonly("implicit_bytes", &RegionMemory::implicit_bytes)
      .def_readonly("tape_bytes", &RegionMemory::tape_bytes)
      .def_readonly("rows", &RegionMemory::rows)
      .def("__len__", [](const RegionMemory& region) { return region.rows.size(); })
      .def("__iter__", [](const RegionMemory& region) { return py::iter(py::cast(region.rows)); })
      .def("__repr__", [](const RegionMemory& region) {
        return "<" + region.region + ": " + std::to_string(region.bytes) + " bytes>";
      });
  py::class_<MemoryChange>(
      m, "MemoryChange",
      "A choice that holds memory, and an estimate of what another choice would free.")
      .def_readonly("reason", &MemoryChange::reason)
      .def_readonly("change", &MemoryChange::change)
      .def_readonly("device", &MemoryChange::device)
      .def_readonly("bytes", &MemoryChange::bytes)
      .def_readonly("bytes_so_far", &MemoryChange::bytes_so_far)
      .def_readonly("tensors", &MemoryChange::tensors)
      .def_readonly("regions", &MemoryChange::regions)
      .def("__repr__", [](const MemoryChange& change) {
        return "<" + change.reason + ": " + std::to_string(change.bytes) + " bytes>";
      });
  py::class_<MemoryReport>(m, "MemoryReport",
                           "What all regions hold; iterates over them, str() formats it.")
      .def_readonly("regions", &MemoryReport::regions)
      .def_readonly("bytes", &MemoryReport::bytes)
      .def_readonly("implicit_bytes", &MemoryReport::implicit_bytes)
      .def_readonly("unmatched_rules", &MemoryReport::unmatched_rules)
      .def_readonly("changes", &MemoryReport::changes)
      .def("changes_str", &MemoryReport::changes_str, py::arg("device") = "", py::arg("wanted") = 0)
      .def("__len__", [](const MemoryReport& report) { return report.regions.size(); })
      .def("__iter__",
           [](const MemoryReport& report) { return py::iter(py::cast(report.regions)); })
      .def("__str__", &MemoryReport::str);
  m.def("memory_report", torch::wrap_pybind_function(memory_report), kMemoryReportDoc);
}

void add_region_tapes(py::module_& m) {
  py::class_<RegionTape>(m, "RegionTape",
                         "A tape that a region has recorded; len() counts its records.")
      .def_property_readonly("region", &RegionTape::region)
      .def_property_readonly("ops", &RegionTape::ops, "The op of each record: 'aten::mm'.")
      .def_property_readonly("bytes", &RegionTape::size_bytes)
      .def("__len__", &RegionTape::size)
      .def("__str__", &RegionTape::str);
  m.def("region_tapes", torch::wrap_pybind_function(region_tapes), kRegionTapesDoc);
}

/// MemoryMeter for Python, which counts until it is closed and keeps the counts after that.
class Meter {
 public:
  int64_t current_bytes(const std::string& device) const {
    return meter_.current_bytes(c10::Device(device));
  }
  int64_t peak_bytes(const std::string& device) const {
    return meter_.peak_bytes(c10::Device(device));
  }
  void reset_peak() {
    TORCH_CHECK(!is_closed_,
                "[MemoryMeter] reset_peak: expected one that counts, got one that was closed.");
    meter_.reset_peak();
  }
  void close() {
    if (!std::exchange(is_closed_, true)) meter_.stop();
  }

 private:
  MemoryMeter meter_;
  bool is_closed_ = false;
};

void add_memory_meter(py::module_& m) {
  py::class_<Meter>(m, "MemoryMeter", kMemoryMeterDoc)
      .def(py::init(torch::wrap_pybind_function([] { return std::make_unique<Meter>(); })))
      .def("current_bytes", torch::wrap_pybind_function(&Meter::current_bytes),
           py::arg("device") = "cpu")
      .def("peak_bytes", torch::wrap_pybind_function(&Meter::peak_bytes), py::arg("device") = "cpu")
      .def("reset_peak", torch::wrap_pybind_function(&Meter::reset_peak),
           "Restarts the peak at the current bytes.")
      .def("close", &Meter::close, "Stops counting, as the end of the block does.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Meter& meter, const py::args& /*exception*/) { meter.close(); });
}

void add_recorder(py::module_& m) {
  py::class_<Recorder>(m, "Recorder", kRecorderDoc)
      .def(py::init(torch::wrap_pybind_function([](const std::string& path, bool source_lines) {
             return std::make_unique<Recorder>(path, RecorderOptions{.source_lines = source_lines});
           })),
           py::arg("path"), py::kw_only(), py::arg("source_lines") = false)
      .def("mark", torch::wrap_pybind_function(&Recorder::mark), py::arg("name"))
      .def("stop", torch::wrap_pybind_function(&Recorder::stop))
      .def("report", torch::wrap_pybind_function(&Recorder::report), py::arg("page"))
      .def_property_readonly("path", &Recorder::path)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__",
           torch::wrap_pybind_function([](Recorder& recorder, const py::args& exception) {
             try {
               recorder.stop();
             } catch (const std::exception& error) {
               // an exception that is being raised takes precedence
               if (exception.empty() || exception[0].is_none()) throw;
               TORCH_WARN(error.what());
             }
           }));
  m.def("_write_report", &write_report_file);
}

}  // namespace

void add_reports(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  add_memory_meter(m);
  add_recorder(m);
  add_memory_report(m);
  add_region_tapes(m);
  m.def("_current_memory_report", torch::wrap_pybind_function(current_memory_report));
  m.def("_saved_tensors_report", torch::wrap_pybind_function(saved_report));
  py::class_<CallTrace>(m, "CallTrace", "Named calls, collected in memory.")
      .def(py::init(&make_call_trace))
      .def("stop", &CallTrace::stop)
      .def("begin_scope", torch::wrap_pybind_function(&CallTrace::begin_scope))
      .def("end_scope", &CallTrace::end_scope)
      .def("entries", [](const CallTrace& trace) { return entries_of(trace.entries()); })
      .def("__str__", &CallTrace::str);
}

}  // namespace remat::python
