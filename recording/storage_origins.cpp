// SPDX-License-Identifier: BSD-3-Clause

// Note [Storages by address]: an address begins to stand for a new storage when its memory is freed
// or allocated, or when an op returns the address without having it among its arguments. Not all
// threads have memory events, so a storage that no op returned may be mistaken for an earlier
// storage at the same address.
#include "storage_origins.h"

#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace remat::detail {
namespace {

/// Goes through begins and ends of ops and memory events in order of time.
class OriginFinder {
 public:
  explicit OriginFinder(const Recording& recording)
      : recording_(recording), nesting_(recording), origins_(recording.ops.size()) {}

  std::vector<std::vector<StorageOrigin>> run() {
    for (size_t i = 0; i < recording_.ops.size(); ++i) {
      const auto& op = recording_.ops[i];
      end_ops_until(op.begin_ns);
      look_at_memory([&](TimeNs event_ns) { return event_ns < op.begin_ns; });
      for (const RecordedTensor& tensor : op.arguments) origins_[i].push_back(met(tensor));
      running_.emplace(op.end_ns, ~op.depth, i);
    }
    return std::move(origins_);
  }

 private:
  using End = std::tuple<TimeNs, uint32_t, size_t>;  // inner ops end first

  void end_ops_until(TimeNs time_ns) {
    while (!running_.empty() && std::get<0>(running_.top()) <= time_ns) {
      const auto [end_ns, depth, op] = running_.top();
      running_.pop();
      look_at_memory([end = end_ns](TimeNs event_ns) { return event_ns <= end; });
      end(op);
    }
  }

  template <class IsBefore>
  void look_at_memory(IsBefore&& is_before) {
    for (; memory_ < recording_.memory.size() && is_before(recording_.memory[memory_].time_ns);
         ++memory_)
      here_.erase(recording_.memory[memory_].address);
  }

  StorageOrigin met(const RecordedTensor& tensor) {
    if (tensor.layout == 0 || tensor.address == 0) return {};
    const auto [known, is_new] = here_.try_emplace(tensor.address);
    if (is_new) known->second = {++storages_, kNoOp};
    return known->second;
  }

  void end(size_t i) {
    const auto& op = recording_.ops[i];
    const bool in_place = writes_in_place(recording_.text(op.name));
    for (const RecordedTensor& tensor : op.results) {
      if (tensor.layout == 0 || tensor.address == 0) continue;
      const auto known = here_.find(tensor.address);
      const bool is_given = op.was_given(tensor.address);
      if (known == here_.end() || (!is_given && !made_inside(known->second, i))) {
        here_[tensor.address] = {++storages_, i};
      } else if (is_given && in_place && !made_inside(known->second, i)) {
        known->second.maker = i;
      }
    }
  }

  bool made_inside(const StorageOrigin& origin, size_t op) const {
    return origin.maker != kNoOp && nesting_.is_part_of(origin.maker, op);
  }

  const Recording& recording_;
  const OpNesting nesting_;
  std::vector<std::vector<StorageOrigin>> origins_;
  std::priority_queue<End, std::vector<End>, std::greater<>> running_;
  std::unordered_map<uint64_t, StorageOrigin> here_;  // by address
  uint64_t storages_ = 0;
  size_t memory_ = 0;  // index of the memory event to look at next
};

}  // namespace

std::string_view base_name(std::string_view op) {
  const size_t space = op.find("::");
  if (space != std::string_view::npos) op.remove_prefix(space + 2);
  return op.substr(0, op.find('.'));
}

bool writes_in_place(std::string_view op) {
  const std::string_view base = base_name(op);
  if (base.starts_with("__i") && base.ends_with("__")) return true;  // x &= y
  if (base.ends_with("_") && !base.ends_with("__")) return true;
  const size_t overload = op.rfind('.');
  return overload != std::string_view::npos && op.substr(overload).find("out") != op.npos;
}

std::vector<std::vector<StorageOrigin>> argument_origins(const Recording& recording) {
  return OriginFinder(recording).run();
}

}  // namespace remat::detail
