// SPDX-License-Identifier: BSD-3-Clause

// Formats the memory report as text.
#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <vector>

#include <remat/inspect/memory_report.h>
#include <remat/recording/printable.h>

#include "report_text.h"

namespace remat {
namespace {

std::string with_separators(size_t bytes) {
  std::string text = std::to_string(bytes);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

void append(std::string& text, const RegionMemory& region) {
  text += c10::str(printable(region.region), ": ", with_separators(region.bytes), " bytes, ",
                   region.slots, " tensors to recompute");
  if (region.tape_bytes > 0)
    text += c10::str(", from a tape of ", with_separators(region.tape_bytes), " bytes");
  std::vector<std::vector<std::string>> rows;
  for (const MemoryRow& row : region.rows)
    rows.push_back({with_separators(row.bytes), printable(row.name), row.tensor, row.why});
  text += columns(rows, 2) + "\n";
}

std::string heading(const std::string& device, size_t wanted) {
  const std::string want =
      wanted > 0 ? c10::str(with_separators(wanted), " bytes of ", device, " are wanted; ") : "";
  return c10::str(want, "to free memory of ", device,
                  ", change (estimated bytes freed: by it alone, with those above):");
}

/// Says whether a change frees `wanted` bytes. `before` is true if the changes listed above this
/// one free that much together.
std::string verdict(const MemoryChange& change, size_t wanted, bool before) {
  if (wanted == 0) return "";
  if (change.bytes >= wanted) return "enough";
  return !before && change.bytes_so_far >= wanted ? "enough with those above" : "";
}

/// The table of changes for one device.
std::string changes_of(c10::ArrayRef<MemoryChange> changes, size_t wanted) {
  std::vector<std::vector<std::string>> rows;
  bool is_enough = false;
  for (const MemoryChange& change : changes) {
    rows.push_back({with_separators(change.bytes), with_separators(change.bytes_so_far),
                    c10::str(printable(change.reason), " (", count_str(change.tensors, "tensor"),
                             " in ", count_str(change.regions, "region"), "): ", change.change),
                    verdict(change, wanted, is_enough)});
    is_enough = is_enough || change.bytes_so_far >= wanted;
  }
  const std::string text = heading(changes.front().device, wanted) + columns(rows, 2) + "\n";
  return is_enough ? text : text + "  all of these together are not enough\n";
}

}  // namespace

std::string MemoryReport::str() const {
  std::string text = c10::str("remat holds ", with_separators(bytes), " bytes in ", regions.size(),
                              regions.size() == 1 ? " region" : " regions");
  if (implicit_bytes > 0)
    text += c10::str(", ", with_separators(implicit_bytes), " of them kept implicitly");
  text += "\n";
  for (const RegionMemory& region : regions) append(text, region);
  for (const std::string& rule : unmatched_rules)
    text += c10::str("a rule has matched no op or call so far: ", printable(rule), "\n");
  text += changes_str();
  return text;
}

std::string MemoryReport::changes_str(const std::string& device, size_t wanted) const {
  std::string text;
  for (size_t begin = 0; begin < changes.size();) {
    const std::string& of = changes[begin].device;
    size_t end = begin;
    while (end < changes.size() && changes[end].device == of) ++end;
    if (device.empty() || device == of)
      text += changes_of(c10::ArrayRef(changes).slice(begin, end - begin), wanted);
    begin = end;
  }
  if (text.empty() && !device.empty())
    text = c10::str("regions hold nothing on ", device, " that a change would free\n");
  return text;
}

}  // namespace remat
