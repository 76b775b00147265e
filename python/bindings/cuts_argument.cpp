// SPDX-License-Identifier: BSD-3-Clause

// Converts checkpoint(cuts=...) and checkpoint(plan=...) to Cuts.
#include "settings.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/budget/plan_cuts.h>
#include <remat/engine/planned_cuts.h>
#include <remat/planner/memory_plan.h>

#include "errors.h"
#include "policy_table.h"

namespace remat::python {
namespace {

std::vector<size_t> as_sizes(const std::string& what, PyObject* value) {
  std::vector<size_t> sizes;
  for_each_item(what, value, [&](const std::string& name, PyObject* item) {
    const Py_ssize_t size = PyLong_Check(item) && !PyBool_Check(item) ? PyLong_AsSsize_t(item) : -1;
    if (PyErr_Occurred()) PyErr_Clear();
    TORCH_CHECK_TYPE(size >= 0, "[checkpoint] ", name, ": expected an int from 0 on, got ",
                     py::repr(item).cast<std::string>(), ".");
    sizes.push_back(static_cast<size_t>(size));
  });
  return sizes;
}

THPObjectPtr attribute_of_cuts(PyObject* value, const char* name) {
  THPObjectPtr attribute(PyObject_GetAttrString(value, name));
  if (!attribute) PyErr_Clear();
  TORCH_CHECK_TYPE(attribute, "[checkpoint] cuts: expected Cuts, got ", type_of(value),
                   ". Write cuts=remat.Cuts(positions, groups=..., policies=..., keep=...).");
  return attribute;
}

Cuts::Group as_group(const std::string& name, PyObject* value) {
  const std::vector<size_t> group = as_sizes(name, value);
  TORCH_CHECK_VALUE(group.size() == 2, "[checkpoint] ", name,
                    ": expected (first segment, last segment + 1), got ", group.size(),
                    " numbers.");
  return {group[0], group[1]};
}

std::shared_ptr<const RegionPolicy> as_policy(Settings& settings, PyObject* value) {
  SharedObject function;
  auto policy = value == Py_None ? nullptr : make_region_policy(value, function);
  if (function) settings.objects.push_back(std::move(function));
  return policy;
}

Cuts::Kept as_kept(const std::string& name, PyObject* value) {
  THPObjectPtr parts = as_tuple(name, value);
  const Py_ssize_t count = PyTuple_GET_SIZE(parts.get());
  TORCH_CHECK_VALUE(count == 2 || count == 3, "[checkpoint] ", name,
                    ": expected (record, result) or (record, result, policy), got ", count,
                    " items.");
  Cuts::Kept kept{};
  if (count == 3)
    kept.policy = policy_of(("checkpoint, " + name).c_str(), PyTuple_GET_ITEM(parts.get(), 2));
  THPObjectPtr numbers(PyTuple_GetSlice(parts.get(), 0, 2));
  const std::vector<size_t> sizes = as_sizes(name, numbers.get());
  kept.record = sizes[0];
  kept.result = sizes[1];
  return kept;
}

}  // namespace

void set_cuts(Settings& settings, PyObject* value) {
  Cuts& cuts = settings.options.cuts;
  if (value == Py_None) return;
  cuts.positions = as_sizes("cuts.positions", attribute_of_cuts(value, "positions").get());
  THPObjectPtr groups = attribute_of_cuts(value, "groups");
  for_each_item("cuts.groups", groups.get(), [&](const std::string& name, PyObject* group) {
    cuts.groups.push_back(as_group(name, group));
  });
  THPObjectPtr policies = attribute_of_cuts(value, "policies");
  for_each_item("cuts.policies", policies.get(),
                [&](const std::string& /*name*/, PyObject* policy) {
                  cuts.policies.push_back(as_policy(settings, policy));
                });
  THPObjectPtr keep = attribute_of_cuts(value, "keep");
  if (keep.get() == Py_None) return;
  cuts.keep.emplace();
  for_each_item("cuts.keep", keep.get(), [&](const std::string& name, PyObject* kept) {
    cuts.keep->push_back(as_kept(name, kept));
  });
}

void set_plan(Settings& settings, PyObject* value) {
  if (value == Py_None) return;
  TORCH_CHECK_TYPE(py::isinstance<MemoryPlan>(value),
                   "[checkpoint] plan: expected a MemoryPlan, got ", type_of(value),
                   ". profile(fn)(*args).plan(budget) gives one.");
  const std::shared_ptr<PlannedCuts> cuts = cuts_of(py::handle(value).cast<const MemoryPlan&>());
  cuts->differs = [told = std::make_shared<std::atomic<bool>>(false)](
                      const TapeDifference& difference) {
    if (told->exchange(true)) return;
    TORCH_WARN("[checkpoint] plan: ", difference.str(),
               ": this is another step than the one that was planned. From there on it is cut by "
               "bytes, and may take more than the budget. Plan for this step.");
  };
  settings.options.plan = cuts;
  settings.options.replay = ReplayEngine::kTape;
}

void set_planned_cuts(Settings& settings, PyObject* value) {
  settings.options.plan = py::handle(value).cast<std::shared_ptr<PlannedCuts>>();
}

}  // namespace remat::python
