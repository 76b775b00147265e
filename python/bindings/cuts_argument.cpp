// SPDX-License-Identifier: BSD-3-Clause

// Converts sequences of numbers to Cuts.
#include "cuts_argument.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "budget.h"
#include "errors.h"
#include "policy_table.h"

namespace remat::python {
namespace {

std::vector<size_t> as_sizes(const std::string& what, PyObject* value) {
  THPObjectPtr items = as_tuple(what.c_str(), value);
  std::vector<size_t> sizes;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(items.get(), i);
    const Py_ssize_t size = PyLong_Check(item) && !PyBool_Check(item) ? PyLong_AsSsize_t(item) : -1;
    if (PyErr_Occurred()) PyErr_Clear();
    TORCH_CHECK_TYPE(size >= 0, "[checkpoint] ", what, "[", i, "]: expected an int from 0 on, got ",
                     py::repr(item).cast<std::string>(), ".");
    sizes.push_back(static_cast<size_t>(size));
  }
  return sizes;
}

THPObjectPtr attribute_of_cuts(PyObject* value, const char* name) {
  THPObjectPtr attribute(PyObject_GetAttrString(value, name));
  if (!attribute) PyErr_Clear();
  TORCH_CHECK_TYPE(attribute, "[checkpoint] cuts: expected Cuts, got ", type_of(value),
                   ". Write cuts=remat.Cuts(positions, groups=..., policies=..., keep=...).");
  return attribute;
}

void add_groups(Cuts& cuts, PyObject* value) {
  THPObjectPtr groups = as_tuple("cuts.groups", value);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(groups.get()); ++i) {
    const std::string name = "cuts.groups[" + std::to_string(i) + "]";
    const std::vector<size_t> group = as_sizes(name, PyTuple_GET_ITEM(groups.get(), i));
    TORCH_CHECK_VALUE(group.size() == 2, "[checkpoint] ", name,
                      ": expected (first segment, last segment + 1), got ", group.size(),
                      " numbers.");
    cuts.groups.push_back({group[0], group[1]});
  }
}

void add_policies(Settings& settings, PyObject* value) {
  THPObjectPtr policies = as_tuple("cuts.policies", value);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(policies.get()); ++i) {
    PyObject* const policy = PyTuple_GET_ITEM(policies.get(), i);
    SharedObject function;
    settings.options.cuts.policies.push_back(
        policy == Py_None ? nullptr : make_region_policy(policy, function));
    if (function) settings.objects.push_back(std::move(function));
  }
}

Cuts::Kept as_kept(const std::string& name, PyObject* value) {
  THPObjectPtr parts = as_tuple(name.c_str(), value);
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

void add_kept(Cuts& cuts, PyObject* value) {
  if (value == Py_None) return;
  THPObjectPtr items = as_tuple("cuts.keep", value);
  cuts.keep.emplace();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(items.get(), i);
    cuts.keep->push_back(as_kept("cuts.keep[" + std::to_string(i) + "]", item));
  }
}

}  // namespace

void set_cuts(Settings& settings, PyObject* value) {
  Cuts& cuts = settings.options.cuts;
  if (value == Py_None || take_planned_cuts(value, cuts)) return;
  cuts.positions = as_sizes("cuts.positions", attribute_of_cuts(value, "positions").get());
  add_groups(cuts, attribute_of_cuts(value, "groups").get());
  add_policies(settings, attribute_of_cuts(value, "policies").get());
  add_kept(cuts, attribute_of_cuts(value, "keep").get());
}

void set_plan(Settings& settings, PyObject* value) {
  if (value == Py_None) return;
  TORCH_CHECK_VALUE(settings.options.cuts.empty(),
                    "[checkpoint] plan: expected no cuts beside it, got some. Leave one out.");
  TORCH_CHECK_TYPE(take_plan(value, settings.options.cuts),
                   "[checkpoint] plan: expected a MemoryPlan, got ", type_of(value),
                   ". profile(fn)(*args).plan(budget) gives one.");
  settings.options.replay = ReplayEngine::kTape;
  settings.options.cuts.differs = [told = std::make_shared<std::atomic<bool>>(false)](
                                      const TapeDifference& difference) {
    if (told->exchange(true)) return;
    TORCH_WARN("[checkpoint] plan: ", difference.str(),
               ": this is another step than the one that was planned. From there on it is cut by "
               "bytes, and may take more than the budget. Plan for this step.");
  };
}

}  // namespace remat::python
