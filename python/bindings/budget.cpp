// SPDX-License-Identifier: BSD-3-Clause

// Profiles and plans as Python objects.
#include "bindings.h"

#include <c10/util/StringUtil.h>
#include <pybind11/stl/filesystem.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <remat/budget/auto_checkpoint.h>
#include <remat/budget/pending_step.h>
#include <remat/budget/profile.h>
#include <remat/budget/step_recording.h>
#include <remat/engine/planned_cuts.h>
#include <remat/inspect/allocation_listener.h>
#include <remat/offload/offload_engine.h>
#include <remat/planner/memory_plan.h>
#include <remat/planner/memory_plan_file.h>
#include <remat/planner/memory_planner.h>
#include <remat/planner/step_profile.h>

#include "argument_tree.h"
#include "docstrings.h"
#include "owned_object.h"
#include "python_state.h"

namespace remat::python {
namespace {

/// Calls forward(cuts, recording). `cuts` is the plan of `options` as a handle for
/// checkpoint(_cuts=...); None if `options` is null, which means a step without a region. Takes the
/// GIL.
void call_forward(const py::object& forward, const CheckpointOptions* options,
                  StepRecording* recording) {
  const py::gil_scoped_acquire gil;
  const auto cuts = options ? std::const_pointer_cast<PlannedCuts>(options->plan) : nullptr;
  forward(cuts, py::cast(recording, py::return_value_policy::reference));
}

/// A step made of Python functions. Call backward() under the GIL; forward() and drop() take it.
class PythonRunner final : public StepRunner {
 public:
  PythonRunner(py::object forward, py::object backward, py::object drop)
      : forward_(std::move(forward)), backward_(std::move(backward)), drop_(std::move(drop)) {}

  void forward(const CheckpointOptions& options, StepRecording* recording) override {
    call_forward(forward_, &options, recording);
  }

  void backward() override { backward_(); }

  void drop() noexcept override {
    const py::gil_scoped_acquire gil;
    try {
      drop_();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("remat_meta.profile");
    }
  }

 private:
  const py::object forward_;
  const py::object backward_;
  const py::object drop_;
};

StepProfile profile_python_steps(py::object forward, py::object backward, py::object drop,
                                 std::string name, int steps) {
  PythonRunner runner(std::move(forward), std::move(backward), std::move(drop));
  return profile_steps(runner, {.name = std::move(name), .steps = steps});
}

StepSignature signature_of(const py::tuple& args, const py::dict& kwargs, bool is_training) {
  std::vector<PyObject*> values;
  for (const py::handle arg : args) values.push_back(arg.ptr());
  for (const auto& [name, arg] : kwargs) values.push_back(arg.ptr());
  std::vector<at::Tensor> tensors;
  const ArgumentTree tree({values.data(), values.size(), nullptr}, tensors);
  return StepSignature::of(tensors, is_training ? 1 : 0);
}

void run_step(AutoCheckpoint& planned, const py::object& forward, const py::tuple& args,
              const py::dict& kwargs, bool is_training) {
  const StepSignature signature = signature_of(args, kwargs, is_training);
  const py::gil_scoped_release released;  // run() may wait for a thread that needs the GIL
  planned.run([&](const CheckpointOptions* options,
                  StepRecording* recording) { call_forward(forward, options, recording); },
              signature);
}

py::object run_eagerly(const py::object& function, const py::tuple& args, const py::dict& kwargs) {
  const CompilerAside compiler;
  return function(*args, **kwargs);
}

/// Wraps function(text) for calls from any C++ thread. After the interpreter's end, a call does
/// nothing.
std::function<void(const std::string&)> line_function(const py::object& function) {
  if (function.is_none()) return {};
  return [shared = share(function.ptr())](const std::string& line) {
    if (!interpreter_lives()) return;
    const py::gil_scoped_acquire gil;
    py::handle(shared->get())(line);
  };
}

std::function<std::string(const std::string&)> text_function(const py::object& function) {
  if (function.is_none()) return {};
  return [shared = share(function.ptr())](const std::string& text) {
    const py::gil_scoped_acquire gil;
    return py::handle(shared->get())(text).cast<std::string>();
  };
}

std::shared_ptr<AutoCheckpoint> make_auto_checkpoint(std::string name, std::string memory_budget,
                                                     std::string plan_file, int steps,
                                                     const py::object& progress,
                                                     const py::object& warn,
                                                     const py::object& agree,
                                                     std::shared_ptr<OffloadEngine> offload) {
  return std::make_shared<AutoCheckpoint>(
      AutoCheckpointOptions{.name = std::move(name),
                            .memory_budget = std::move(memory_budget),
                            .plan_file = std::move(plan_file),
                            .steps = steps,
                            .progress = line_function(progress),
                            .warn = line_function(warn),
                            .agree = text_function(agree),
                            .offload = std::move(offload)});
}

/// Returns the plan's cuts as a remat_meta.Cuts, for checkpoint(replay="tape", cuts=...).
py::object python_cuts(const MemoryPlan& plan) {
  const py::module_ policy = py::module_::import("remat_meta._policy");
  const py::object offload = policy.attr("CheckpointPolicy").attr("OFFLOAD");
  py::list keep;
  for (const KeptResult& kept : plan.cuts.keep) {
    if (kept.policy == Policy::kOffload) {
      keep.append(py::make_tuple(kept.record, kept.result, offload));
    } else {
      keep.append(py::make_tuple(kept.record, kept.result));
    }
  }
  return policy.attr("Cuts")(plan.cuts.positions, plan.cuts.groups, py::tuple(), keep);
}

using Budget = std::variant<int64_t, std::string>;

Budget budget_of(const py::object& given) {
  if (py::isinstance<py::str>(given)) return given.cast<std::string>();
  if (!PyLong_Check(given.ptr()) || PyBool_Check(given.ptr()))
    throw py::type_error(
        c10::str("[memory plan] budget: expected bytes or a text like \"8GB\" or \"60%\", got ",
                 Py_TYPE(given.ptr())->tp_name, "."));
  int overflow = 0;
  const auto bytes = PyLong_AsLongLongAndOverflow(given.ptr(), &overflow);
  if (overflow != 0)
    throw py::value_error("[memory plan] budget: expected bytes below 2^63, got more.");
  return static_cast<int64_t>(bytes);
}

std::shared_ptr<OffloadEngine> engine_of(const py::object& given) {
  if (given.is_none()) return nullptr;
  if (py::isinstance<OffloadEngine>(given)) return given.cast<std::shared_ptr<OffloadEngine>>();
  throw py::type_error(c10::str("[memory plan] offload: expected a store of remat.offload(), got ",
                                py::type::of(given).attr("__name__").cast<std::string>(),
                                ". Give remat.offload(\"host\", max_leaving_bytes=..., "
                                "prefetch_bytes=...): only its copies can be planned for."));
}

MemoryPlannerOptions planner_options(const StepProfile& profile,
                                     const std::shared_ptr<OffloadEngine>& offload) {
  MemoryPlannerOptions options;
  if (offload)
    options.offload = offload->terms(profile.device.empty() ? c10::Device(c10::kCPU)
                                                            : c10::Device(profile.device));
  return options;
}

MemoryPlan plan_for(const MemoryPlanner& planner, const Budget& budget) {
  const auto* const text = std::get_if<std::string>(&budget);
  return planner.plan(text ? planner.budget_bytes(*text) : std::get<int64_t>(budget));
}

MemoryPlan told(MemoryPlan plan) {
  const std::string text = plan.why_nothing_moves();
  if (text.empty()) return plan;
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) != 0) throw py::error_already_set();
  return plan;
}

void add_profile(py::module_& m) {
  py::class_<StepRecording>(m, "_StepRecording").def("enter", &StepRecording::enter);
  py::class_<StepProfile>(m, "StepProfile", kStepProfileDoc)
      .def_readonly("name", &StepProfile::name)
      .def_readonly("plain_peak_bytes", &StepProfile::plain_peak_bytes)
      .def_readonly("device", &StepProfile::device)
      .def("__len__", [](const StepProfile& profile) { return profile.records.size(); })
      .def("digest", &StepProfile::digest)
      .def(
          "plan",
          [](const StepProfile& profile, const py::object& given, const py::object& store) {
            const Budget budget = budget_of(given);
            const std::shared_ptr<OffloadEngine> offload = engine_of(store);
            MemoryPlan plan;
            {
              const py::gil_scoped_release released;
              plan = plan_for(MemoryPlanner(profile, planner_options(profile, offload)), budget);
            }
            return told(std::move(plan));
          },
          py::arg("budget"), py::arg("offload") = py::none())
      .def("to_json", &StepProfile::to_json)
      .def(
          "save",
          [](const StepProfile& profile, const std::filesystem::path& path) { profile.save(path); },
          py::arg("path"))
      .def_static(
          "load", [](const std::filesystem::path& path) { return StepProfile::load(path); },
          py::arg("path"))
      .def_static("from_json", &StepProfile::from_json, py::arg("text"),
                  py::arg("source") = "profile");
  m.def("_profile_steps", torch::wrap_pybind_function(profile_python_steps));
}

void add_plan(py::module_& m) {
  py::class_<MemoryFrontierPoint>(m, "MemoryFrontierPoint", "A peak and its predicted overhead.")
      .def_readonly("peak_bytes", &MemoryFrontierPoint::peak_bytes)
      .def_readonly("overhead", &MemoryFrontierPoint::overhead)
      .def("__repr__", [](const MemoryFrontierPoint& point) {
        return c10::str("MemoryFrontierPoint(peak_bytes=", point.peak_bytes,
                        ", overhead=", point.overhead, ")");
      });
  py::class_<MemoryPlan>(m, "MemoryPlan", kMemoryPlanDoc)
      .def_readonly("feasible", &MemoryPlan::feasible)
      .def_readonly("budget_bytes", &MemoryPlan::budget_bytes)
      .def_readonly("predicted_peak_bytes", &MemoryPlan::predicted_peak_bytes)
      .def_readonly("least_budget_bytes", &MemoryPlan::least_budget_bytes)
      .def_readonly("predicted_overhead", &MemoryPlan::predicted_overhead)
      .def_readonly("offloaded_bytes", &MemoryPlan::offloaded_bytes)
      .def_readonly("predicted_wait_us", &MemoryPlan::predicted_wait_us)
      .def_readonly("lower_bound", &MemoryPlan::lower_bound)
      .def_readonly("peak_at", &MemoryPlan::peak_at)
      .def_readonly("limit", &MemoryPlan::limit)
      .def("table", &MemoryPlan::table)
      .def("explain", &MemoryPlan::explain, py::arg("where") = "")
      .def("to_json", &MemoryPlan::to_json)
      .def_static("from_json", &MemoryPlan::from_json, py::arg("text"), py::arg("profile"),
                  py::arg("source") = "plan")
      .def("__repr__",
           [](const MemoryPlan& plan) {
             return c10::str("MemoryPlan(feasible=", plan.feasible ? "True" : "False",
                             ", budget_bytes=", plan.budget_bytes,
                             ", predicted_peak_bytes=", plan.predicted_peak_bytes,
                             ", predicted_overhead=", plan.predicted_overhead, ")");
           })
      .def("frontier", [](const MemoryPlan& plan) { return plan.frontier; })
      .def(
          "save",
          [](const MemoryPlan& plan, const std::filesystem::path& path) {
            MemoryPlanFile{.made_with = {}, .plan = plan}.save(path);
          },
          py::arg("path"))
      .def_static(
          "load", [](const std::filesystem::path& path) { return MemoryPlanFile::load(path).plan; },
          py::arg("path"))
      .def_property_readonly("cuts", &python_cuts)
      .def(py::pickle(
          [](const MemoryPlan& plan) {
            return MemoryPlanFile{.made_with = {}, .plan = plan}.to_json();
          },
          [](const std::string& text) { return MemoryPlanFile::from_json(text, "pickle").plan; }));
  py::class_<MemoryPlanner>(m, "MemoryPlanner", kMemoryPlannerDoc)
      .def(py::init([](const StepProfile& profile, const py::object& store) {
             const std::shared_ptr<OffloadEngine> offload = engine_of(store);
             const py::gil_scoped_release released;
             return MemoryPlanner(profile, planner_options(profile, offload));
           }),
           py::arg("profile"), py::arg("offload") = py::none())
      .def_property_readonly("profile", &MemoryPlanner::profile)
      .def_property_readonly("frontier", &MemoryPlanner::frontier)
      .def(
          "plan",
          [](const MemoryPlanner& planner, const py::object& given) {
            return told(plan_for(planner, budget_of(given)));
          },
          py::arg("budget"));
}

void add_auto_checkpoint(py::module_& m) {
  py::class_<PlannedCuts, std::shared_ptr<PlannedCuts>>(m, "_PlannedCuts")
      .def_readonly("is_unknown", &PlannedCuts::while_recorded)
      .def_property_readonly("moves",
                             [](const PlannedCuts& cuts) { return cuts.offload.has_value(); });
  py::class_<AutoCheckpoint, std::shared_ptr<AutoCheckpoint>>(m, "_AutoCheckpoint")
      .def(py::init(&make_auto_checkpoint))
      .def("run", torch::wrap_pybind_function(run_step))
      .def("plan", &AutoCheckpoint::plan, py::call_guard<py::gil_scoped_release>())
      .def("why_no_plan", &AutoCheckpoint::why_no_plan, py::call_guard<py::gil_scoped_release>())
      .def("advice", &AutoCheckpoint::advice);
  m.def("_run_eagerly", &run_eagerly);
  m.def(
      "_give_up_measured_step", [] { PendingStep::here().give_up(); },
      py::call_guard<py::gil_scoped_release>());
  m.def("_is_memory_heard", &AllocationListener::is_listening);
}

}  // namespace

void add_budget(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  add_profile(m);
  add_plan(m);
  add_auto_checkpoint(m);
}

}  // namespace remat::python
