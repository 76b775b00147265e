// SPDX-License-Identifier: BSD-3-Clause

// Finding writes in a backward to saved tensors that regions have handed to it.
#include "given_values.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <map>

#include <remat/engine/op_call.h>
#include <remat/engine/region.h>

namespace remat {
namespace {

std::mutex& tasks_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}
/// By graph task, guarded by tasks_mutex(). Leaked, because a pass may outlive static objects.
std::map<int, std::weak_ptr<GivenValues>>& tasks() {
  static auto& all = *new std::map<int, std::weak_ptr<GivenValues>>;
  return all;
}

bool share_memory(const RegionSaved& a, const RegionSaved& b) {
  return a.version().counter() && a.version().counter() == b.version().counter();
}

}  // namespace

std::string RegionSaved::where() const {
  if (kept)
    return c10::str("[replay] ", region.label(), ", ",
                    region.calls().records()[kept->call].call.str(), ", tensor '", kept->name,
                    "' (", kept->meta.str(), ")");
  return c10::str("[replay] ", region.label(), ", slot ", slot->index, " (", slot->meta.str(),
                  "), saved by ", slot->op ? slot->op->name() : "a custom function");
}

std::shared_ptr<GivenValues> GivenValues::of_task(int graph_task) {
  const std::lock_guard<std::mutex> lock(tasks_mutex());
  std::weak_ptr<GivenValues>& of = tasks()[graph_task];
  std::shared_ptr<GivenValues> values = of.lock();
  if (!values) of = values = std::make_shared<GivenValues>(graph_task);
  return values;
}

GivenValues::~GivenValues() {
  const std::lock_guard<std::mutex> lock(tasks_mutex());
  const auto entry = tasks().find(graph_task_);
  // Another thread of the pass may have made a new list since this one had no owner left.
  if (entry != tasks().end() && entry->second.expired()) tasks().erase(entry);
}

void GivenValues::add(const RegionSaved& saved, const at::Tensor& value, Hooked hooked) {
  if (value.is_inference()) return;
  const c10::VariableVersion version = value.unsafeGetTensorImpl()->version_counter();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const void* const counter = saved.version().counter())
    by_counter_[counter].push_back(all_.size());
  all_.push_back({.saved = saved,
                  .owner = saved.region.shared_from_this(),
                  .hooked = hooked,
                  .memory = memory_of(value),
                  .node = torch::autograd::get_current_node().get(),
                  .version = version,
                  .before = version.current_version()});
  is_empty_.store(false, std::memory_order_release);
}

void GivenValues::check_read(const RegionSaved& saved, const void* memory) const {
  if (is_empty_.load(std::memory_order_acquire)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto sharing = by_counter_.find(saved.version().counter());
  if (sharing == by_counter_.end()) return;
  for (const size_t number : sharing->second) {
    const Given& given = all_[number];
    if (!given.is_written()) continue;
    if (given.hooked != Hooked::kNo) given.refuse("and another saved tensor has that memory");
    TORCH_CHECK(!memory || given.memory != memory,
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: [",
                saved.meta().str(), "]. ", saved.where(),
                ": expected the tensor as the forward saved it, got a write to its memory in this "
                "backward, by a node that had got ",
                given.saved.where(), ". Write a clone() in backward, or save a clone.");
  }
}

void GivenValues::check_argument(const void* memory) {
  std::shared_ptr<GivenValues> values;
  {
    const std::lock_guard<std::mutex> lock(tasks_mutex());
    const auto entry = tasks().find(torch::autograd::get_current_graph_task_id());
    if (entry != tasks().end()) values = entry->second.lock();
  }
  if (!values) return;
  const std::lock_guard<std::mutex> lock(values->mutex_);
  for (const Given& given : values->all_) {
    if (given.memory == memory && given.is_written())
      given.refuse("and the replay of another region begins with that memory");
  }
}

void GivenValues::check_at_end(bool is_retained) {
  std::vector<Given> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all.swap(all_);  // The first region to end checks for all.
    by_counter_.clear();
  }
  for (const Given& given : all) {
    if (!given.is_written()) continue;
    if (const char* const seen_by_whom = seen_by(given, all, is_retained))
      given.refuse(seen_by_whom);
  }
}

bool GivenValues::Given::is_written() const {
  return version.current_version() != before || saved.version().changed();
}

void GivenValues::Given::refuse(const char* seen_by_whom) const {
  const bool is_hooked = hooked != Hooked::kNo;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, saved.where(), ": expected that nobody writes in backward what the region has saved",
      is_hooked ? " under saved-tensor hooks" : " and a store has brought back",
      ", got a write to it, or to the forward's memory of it, ", seen_by_whom,
      is_hooked ? ". Hooks that copy part the two, others do not, and remat cannot know. Write a "
                  "clone() in backward, or open no hooks there."
                : ". The store's copies part the two. Write a clone() in backward.");
}

/// Says who may see a write to `given`; null if nobody does.
const char* GivenValues::seen_by(const Given& given, const std::vector<Given>& all,
                                 bool is_retained) {
  if (given.hooked == Hooked::kByOthers)
    return "which somebody else has (an attribute of a custom function's context, the region's "
           "result, a store)";
  if (has_twin(given, all)) return "and another saved tensor has that memory";
  if (given.hooked == Hooked::kByCopy && is_retained)
    return "and the graph is retained for another backward";
  return nullptr;
}

/// True if another saved tensor had the same memory in the forward and would show the write.
/// Without hooks, the other tensor counts only if the same node got it on other memory. On the same
/// memory it shows the write as in plain code. Another node has read it before the write, because
/// otherwise check_read() raises.
bool GivenValues::has_twin(const Given& given, const std::vector<Given>& all) {
  return std::any_of(all.begin(), all.end(), [&](const Given& other) {
    if (other.saved.slot == given.saved.slot && other.saved.kept == given.saved.kept) return false;
    return share_memory(given.saved, other.saved) &&
           (given.hooked != Hooked::kNo ||
            (other.memory != given.memory && other.node == given.node));
  });
}

}  // namespace remat
