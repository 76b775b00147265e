// SPDX-License-Identifier: BSD-3-Clause

// Profiles and plans as Python objects.
#include "budget.h"

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include <remat/budget/profile.h>
#include <remat/budget/step_recording.h>
#include <remat/memory_plan/memory_plan.h>
#include <remat/memory_plan/memory_planner.h>
#include <remat/memory_plan/step_profile.h>

#include "docstrings.h"

namespace remat::python {
namespace {

/// A Python object with forward(positions, keeps_nothing, recording), backward() and drop(). Under
/// the GIL.
class PythonRunner final : public StepRunner {
 public:
  explicit PythonRunner(py::object runner) : runner_(std::move(runner)) {}

  void forward(const Cuts& cuts, StepRecording& recording) override {
    runner_.attr("forward")(cuts.positions, cuts.keep.has_value(),
                            py::cast(recording, py::return_value_policy::reference));
  }

  void backward() override { runner_.attr("backward")(); }

  void drop() noexcept override {
    try {
      runner_.attr("drop")();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("remat_meta.profile");
    }
  }

 private:
  const py::object runner_;
};

StepProfile profile_python_steps(py::object runner, std::string name, int steps) {
  PythonRunner wrapped(std::move(runner));
  return profile_steps(wrapped, {.name = std::move(name), .steps = steps});
}

/// remat_meta.Cuts, for checkpoint(replay="tape", cuts=...).
py::object cuts_of(const MemoryPlan& plan) {
  py::list keep;
  for (const KeptResult& kept : plan.cuts.keep)
    keep.append(py::make_tuple(kept.record, kept.result));
  return py::module_::import("remat_meta._cuts")
      .attr("Cuts")(plan.cuts.positions, plan.cuts.groups, py::tuple(), keep);
}

/// A budget in bytes, or as text.
using Budget = std::variant<int64_t, std::string>;

MemoryPlan plan_for(const MemoryPlanner& planner, const Budget& budget) {
  const auto* const text = std::get_if<std::string>(&budget);
  return planner.plan(text ? planner.budget_bytes(*text) : std::get<int64_t>(budget));
}

void add_profile(py::module_& m) {
  py::class_<StepRecording>(m, "_StepRecording").def("enter", &StepRecording::enter);
  py::class_<StepProfile>(m, "StepProfile", kStepProfileDoc)
      .def_readonly("name", &StepProfile::name)
      .def_readonly("plain_peak_bytes", &StepProfile::plain_peak_bytes)
      .def("__len__", [](const StepProfile& profile) { return profile.records.size(); })
      .def("digest", &StepProfile::digest)
      .def(
          "plan",
          [](const StepProfile& profile, const Budget& budget) {
            const py::gil_scoped_release released;
            return plan_for(MemoryPlanner(profile), budget);
          },
          py::arg("budget"))
      .def("to_json", &StepProfile::to_json)
      .def_static("from_json", &StepProfile::from_json, py::arg("text"),
                  py::arg("source") = "profile");
  m.def("_profile_steps", torch::wrap_pybind_function(profile_python_steps));
}

void add_plan(py::module_& m) {
  py::class_<MemoryFrontierPoint>(m, "MemoryFrontierPoint", "What a budget buys.")
      .def_readonly("peak_bytes", &MemoryFrontierPoint::peak_bytes)
      .def_readonly("overhead", &MemoryFrontierPoint::overhead);
  py::class_<MemoryPlan>(m, "MemoryPlan", kMemoryPlanDoc)
      .def_readonly("feasible", &MemoryPlan::feasible)
      .def_readonly("budget_bytes", &MemoryPlan::budget_bytes)
      .def_readonly("predicted_peak_bytes", &MemoryPlan::predicted_peak_bytes)
      .def_readonly("least_budget_bytes", &MemoryPlan::least_budget_bytes)
      .def_readonly("predicted_overhead", &MemoryPlan::predicted_overhead)
      .def_readonly("lower_bound", &MemoryPlan::lower_bound)
      .def_readonly("peak_at", &MemoryPlan::peak_at)
      .def_readonly("limit", &MemoryPlan::limit)
      .def("table", &MemoryPlan::table)
      .def("explain", &MemoryPlan::explain, py::arg("where") = "")
      .def("to_json", &MemoryPlan::to_json)
      .def_static("from_json", &MemoryPlan::from_json, py::arg("text"), py::arg("profile"),
                  py::arg("source") = "plan")
      .def_property_readonly("cuts", &cuts_of);
  py::class_<MemoryPlanner>(m, "MemoryPlanner", kMemoryPlannerDoc)
      .def(py::init([](const StepProfile& profile) { return MemoryPlanner(profile); }),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("profile", &MemoryPlanner::profile)
      .def_property_readonly("frontier", &MemoryPlanner::frontier)
      .def("plan", &plan_for, py::arg("budget"));
}

}  // namespace

void add_budget(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  add_profile(m);
  add_plan(m);
}

}  // namespace remat::python
