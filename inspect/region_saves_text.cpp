// SPDX-License-Identifier: BSD-3-Clause

// Formats one region's saves as text.
#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include <remat/engine/hidden_scopes.h>
#include <remat/engine/scope.h>
#include <remat/engine/tensor_meta.h>
#include <remat/inspect/region_saves.h>

#include "report_text.h"

namespace remat {
namespace {

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

/// Calls the user's function outside the region that may be open here.
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

std::string RegionSaves::str(const Annotate& annotate) const {
  std::string text =
      c10::str(region.empty() ? "region without a name" : region, ": ", bytes_str(bytes),
               " resident in ", count_str(storage_count(), "storage"));
  const std::string prefix = region.empty() ? "" : region + "::";
  // Column widths span the whole region; the headings of the calls are inserted afterwards.
  std::vector<Cells> rows;
  std::vector<std::pair<size_t, std::string>> headings;  // row index before which each heading goes
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
