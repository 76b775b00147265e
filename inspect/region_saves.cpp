// SPDX-License-Identifier: BSD-3-Clause

// Collects what a region holds, by storage, and formats it as text.
#include <remat/inspect/region_saves.h>

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/engine/hidden_scopes.h>
#include <remat/engine/scope.h>
#include <remat/engine/tensor_meta.h>

#include "held_tensors.h"
#include "report_text.h"

namespace remat {
namespace {

using Interval = std::pair<int64_t, int64_t>;  // [from, to) in bytes

/// For a strided tensor with more contiguous runs than this, the gaps between runs count as used.
constexpr int64_t kMostRuns = 4096;

std::vector<Interval> bytes_of(const TensorLayout& layout) {
  const auto item = static_cast<int64_t>(c10::elementSize(layout.dtype));
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride in bytes and size, the innermost first
  for (const auto i : c10::irange(layout.sizes.size())) {
    if (layout.sizes[i] == 0) return {};
    if (layout.sizes[i] > 1) dims.emplace_back(layout.strides[i] * item, layout.sizes[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t run = item;
  size_t inner = 0;
  while (inner < dims.size() && dims[inner].first <= run) {
    run += dims[inner].first * (dims[inner].second - 1);
    ++inner;
  }
  int64_t runs = 1;
  for (size_t i = inner; i < dims.size(); ++i) runs *= dims[i].second;
  const int64_t start = layout.offset * item;
  if (runs > kMostRuns) return {{start, static_cast<int64_t>(layout.bytes_spanned())}};
  std::vector<Interval> intervals{{start, start + run}};
  for (size_t i = inner; i < dims.size(); ++i) {
    const std::vector<Interval> once = intervals;
    for (const auto k : c10::irange(int64_t{1}, dims[i].second)) {
      for (const auto& [from, to] : once)
        intervals.emplace_back(from + k * dims[i].first, to + k * dims[i].first);
    }
  }
  return intervals;
}

size_t size_of(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  int64_t size = 0;
  int64_t end = 0;
  for (const auto& [from, to] : intervals) {
    size += std::max<int64_t>(0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return static_cast<size_t>(size);
}

TensorLayout contiguous(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  TensorLayout layout;
  layout.dtype = dtype;
  layout.sizes.assign(sizes.begin(), sizes.end());
  layout.strides.assign(layout.sizes.size(), 1);
  for (size_t i = layout.sizes.size(); i > 1; --i)
    layout.strides[i - 2] = layout.strides[i - 1] * std::max<int64_t>(layout.sizes[i - 1], 1);
  return layout;
}

TensorLayout layout_of(const TensorMeta& meta) {
  return contiguous(meta.sizes(), meta.dtype());
}

std::string name_of(const HeldTensor& held) {
  if (held.kind == HeldTensor::Kind::kArgument) return c10::str("argument ", held.number);
  if (held.kind == HeldTensor::Kind::kWritten)
    return c10::str("outside ", held.number, " before its write");
  return held.name;
}

/// The layout of a held tensor that is not a call's result.
TensorLayout layout_of(const Region& region, const HeldTensor& held) {
  if (!held.layout) return layout_of(held.meta);
  if (held.kind != HeldTensor::Kind::kWritten) return *held.layout;
  const bool is_whole = *held.layout == region.outside()[held.number].whole();
  return is_whole ? layout_of(held.meta) : contiguous(held.layout->sizes, held.layout->dtype);
}

/// Lists what one region holds; each storage goes under the first call that has it.
class RegionWalk {
 public:
  RegionWalk(const Region& region, std::unordered_set<const void*>& billed)
      : region_(region),
        calls_(region.calls()),
        replayer_(region.replayer()),
        held_(held_tensors(region, replayer_.get())),
        billed_(billed),
        saves_{.region = region.name(), .calls = {}, .released = {}} {}

  RegionSaves run() {
    for (const HeldTensor& held : held_) {
      if (is_of_call(held) || held.is_leaf) continue;
      if (!add("", name_of(held), layout_of(region_, held), held.storage)) ++saves_.elsewhere;
    }
    add_calls();
    for (CallSaves& call : saves_.calls) {
      for (SavedStorage& storage : call.storages) finish(storage);
    }
    return std::move(saves_);
  }

 private:
  void add_calls() {
    std::vector<bool> keeps(calls_.records().size());  // by call: true if it keeps something now
    // By call: true if the call kept something until its graph was dropped.
    std::vector<bool> dropped(calls_.records().size());
    for (const KeptTensor& kept : calls_.kept()) {
      if (!kept.live) dropped[kept.call] = true;
    }
    const std::vector<const HeldTensor*> by_call = held_by_call();
    auto next = by_call.begin();
    for (const auto i : c10::irange(calls_.records().size())) {
      const CallRecord& record = calls_.records()[i];
      for (; next != by_call.end() && (*next)->call() == i; ++next) {
        keeps[i] = true;
        if (!(*next)->is_leaf) add_of_call(record, **next);
      }
      if (!record.call.is_saved()) continue;
      saves_.rebuilt += record.refills.size();
      if (dropped[i] && !keeps[i] && record.refills.empty())
        saves_.released.push_back(record.call.name);
    }
  }

  static bool is_of_call(const HeldTensor& held) { return held.kept || held.product; }

  std::vector<const HeldTensor*> held_by_call() const {
    std::vector<const HeldTensor*> by_call;
    for (const HeldTensor& held : held_) {
      if (is_of_call(held)) by_call.push_back(&held);
    }
    std::stable_sort(by_call.begin(), by_call.end(),
                     [](const auto* a, const auto* b) { return a->call() < b->call(); });
    return by_call;
  }

  void add_of_call(const CallRecord& record, const HeldTensor& held) {
    if (held.kept ? add_saved(record, held) : add_result(record, held)) return;
    ++(record.call.policy == Policy::kOffload ? saves_.offloaded : saves_.elsewhere);
  }

  bool add_saved(const CallRecord& record, const HeldTensor& held) {
    const TensorLayout layout = layout_of(region_, held);
    if (!add(record.call.name, held.name, layout, held.storage)) return false;
    for (const uint32_t result : held.kept->results)
      add(record.call.name, c10::str("output ", result), layout, held.storage);
    return true;
  }

  bool add_result(const CallRecord& record, const HeldTensor& held) {
    bool added = false;
    for (const auto k : c10::irange(record.outputs.size())) {
      const CallOutput& output = record.outputs[k];
      if (output.source != CallOutput::Source::kProduct || output.product != held.number) continue;
      if (!add(record.call.name, c10::str("output ", k), output.layout, held.storage)) return false;
      added = true;
    }
    return added || add(record.call.name, "written", layout_of(held.meta), held.storage);
  }

  /// Returns false if the storage is gone because hooks, a store or an outer region have the value.
  bool add(const std::string& call, std::string name, const TensorLayout& layout,
           const HeldStorage& held) {
    if (held.parts()) return add_parts(call, name, *held.parts());
    const c10::Storage storage = held.lock();
    if (!storage) return false;
    SavedStorage* const entry = entry_of(call, held, storage);
    if (!entry) return true;
    for (SavedView& view : entry->views) {
      if (!(view.layout == layout)) continue;
      const bool is_known =
          std::find(view.names.begin(), view.names.end(), name) != view.names.end();
      if (!is_known) view.names.push_back(std::move(name));
      return true;
    }
    entry->views.push_back({{std::move(name)}, layout, size_of(bytes_of(layout))});
    return true;
  }

  /// Adds the storages inside a tensor that has no memory itself.
  bool add_parts(const std::string& call, const std::string& name,
                 const std::vector<HeldStorage>& parts) {
    bool any = false;
    for (const auto i : c10::irange(parts.size())) {
      const TensorLayout bytes = TensorLayout::flat(parts[i].size_bytes(), c10::kByte);
      any = add(call, c10::str(name, ", part ", i), bytes, parts[i]) || any;
    }
    return any;
  }

  static void finish(SavedStorage& storage) {
    std::vector<Interval> all;
    for (const SavedView& view : storage.views) {
      const std::vector<Interval> one = bytes_of(view.layout);
      all.insert(all.end(), one.begin(), one.end());
    }
    storage.used_bytes = std::min(size_of(std::move(all)), storage.bytes);
    std::stable_partition(storage.views.begin(), storage.views.end(),
                          [&](const SavedView& view) { return view.bytes == storage.bytes; });
  }

  /// The entry of `call` for the storage; null if another call or region has an entry for it.
  SavedStorage* entry_of(const std::string& call, const HeldStorage& held,
                         const c10::Storage& storage) {
    if (billed_.insert(held.address()).second) {
      if (saves_.calls.empty() || saves_.calls.back().name != call)
        saves_.calls.push_back({.name = call, .storages = {}});
      places_[held.address()] = {saves_.calls.size() - 1, saves_.calls.back().storages.size()};
      saves_.calls.back().storages.push_back(
          {.bytes = storage.nbytes(), .views = {}, .device = storage.device(), .storage = held});
      saves_.calls.back().bytes += storage.nbytes();
      saves_.bytes += storage.nbytes();
      return &saves_.calls.back().storages.back();
    }
    const auto place = places_.find(held.address());
    if (place == places_.end()) return nullptr;
    CallSaves& other = saves_.calls[place->second.first];
    return other.name == call ? &other.storages[place->second.second] : nullptr;
  }

  const Region& region_;
  const CallLog& calls_;
  const std::shared_ptr<const Replayer> replayer_;
  const std::vector<HeldTensor> held_;
  std::unordered_set<const void*>& billed_;
  RegionSaves saves_;
  // By storage address: index in saves_.calls, and in the storages of that call.
  std::unordered_map<const void*, std::pair<size_t, size_t>> places_;
};

using Cells = std::vector<std::string>;

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

/// Texts such as "x", "x = y" and "x (output 0)".
std::string name_of(const SavedView& view) {
  std::vector<std::string> names = view.names;
  const auto outputs = std::stable_partition(
      names.begin(), names.end(), [](const auto& name) { return name.rfind("output ", 0) != 0; });
  const std::vector<std::string> positions(outputs, names.end());
  names.erase(outputs, names.end());
  if (names.empty()) return joined(positions, ", ");
  const std::string text = joined(names, " = ");
  return positions.empty() ? text : text + " (" + joined(positions, ", ") + ")";
}

std::string shape_of(const SavedView& view) {
  return c10::str(c10::IntArrayRef(view.layout.sizes.data(), view.layout.sizes.size()));
}

/// Calls `annotate` with the thread's scopes suspended, because a region may be running here.
std::string words_on(const SavedStorage& storage, const Annotate& annotate) {
  if (!annotate) return "";
  const SuspendScopes suspend;
  const at::Tensor tensor = storage.tensor();
  return tensor.defined() ? annotate(tensor) : "";
}

void add_storage(const SavedStorage& storage, const Annotate& annotate, std::vector<Cells>& rows) {
  const bool has_main = storage.views.size() == 1 || storage.views.front().bytes == storage.bytes;
  const SavedView& first = storage.views.front();
  std::vector<std::string> names;
  for (const SavedView& view : storage.views) names.push_back(name_of(view));
  Cells row{bytes_str(storage.bytes), has_main ? names[0] : "base of " + joined(names, ", "),
            has_main ? shape_of(first) : "",
            c10::str(dtype_name(first.layout.dtype), " on ", storage.device.str())};
  if (storage.used_bytes < storage.bytes)
    row.push_back(
        c10::str("held for ", bytes_str(storage.used_bytes), " of ", bytes_str(storage.bytes)));
  const std::string note = words_on(storage, annotate);
  if (!note.empty()) row.push_back(note);
  rows.push_back(std::move(row));
  for (size_t i = has_main ? 1 : 0; i < storage.views.size(); ++i) {
    const SavedView& view = storage.views[i];
    rows.push_back({"", "- " + names[i], shape_of(view), "view of " + bytes_str(view.bytes)});
  }
}

}  // namespace

bool may_be_looked_into(const Region& region) {
  if (region.closed()) return true;
  for (const Scope* scope = Scope::current(); scope; scope = scope->previous()) {
    if (scope->region() == &region && scope->replay_id() == 0) return true;
  }
  return false;
}

RegionSaves region_saves_of(const Region& region, std::unordered_set<const void*>& billed) {
  return RegionWalk(region, billed).run();
}

std::optional<RegionSaves> current_region_saves() {
  for (const Scope* scope = Scope::current(); scope; scope = scope->previous()) {
    std::unordered_set<const void*> billed;
    if (const Region* const region = scope->region()) return region_saves_of(*region, billed);
  }
  return std::nullopt;
}

at::Tensor SavedStorage::tensor() const {
  const c10::Storage held = storage.lock();
  return held && !views.empty() ? lay_out(held, views.front().layout) : at::Tensor();
}

size_t RegionSaves::storage_count() const {
  size_t count = 0;
  for (const CallSaves& call : calls) count += call.storages.size();
  return count;
}

std::string RegionSaves::str(const Annotate& annotate) const {
  std::string text =
      c10::str(region.empty() ? "region without a name" : region, ": ", bytes_str(bytes),
               " resident in ", count_str(storage_count(), "storage"));
  const std::string prefix = region.empty() ? "" : region + "::";
  // Column widths span the whole region; the headings of the calls are inserted afterwards.
  std::vector<Cells> rows;
  std::vector<std::pair<size_t, std::string>> headings;  // each with the index of the row below it
  for (const CallSaves& call : calls) {
    headings.emplace_back(rows.size(),
                          c10::str("\n", prefix, call.name.empty() ? "(for the replay)" : call.name,
                                   ": ", bytes_str(call.bytes)));
    for (const SavedStorage& storage : call.storages) add_storage(storage, annotate, rows);
  }
  const std::string table = columns(rows, 2);
  size_t at = 0;
  auto heading = headings.begin();
  for (const auto row : c10::irange(rows.size())) {
    for (; heading != headings.end() && heading->first == row; ++heading) text += heading->second;
    const size_t end = table.find('\n', at + 1);
    text += table.substr(at, end - at);
    at = end;
  }
  if (rebuilt > 0)
    text += c10::str("\n  + ", count_str(rebuilt, "save"), " rebuilt on recompute, not resident");
  if (offloaded > 0) text += c10::str("\n  + ", count_str(offloaded, "tensor"), " offloaded");
  if (elsewhere > 0)
    text += c10::str("\n  + ", count_str(elsewhere, "tensor"),
                     " kept by hooks or by a region around this one");
  for (const std::string& name : released)
    text +=
        c10::str("\n  ! ", name, ": its graph was dropped, so what it kept is already released");
  return text;
}

}  // namespace remat
