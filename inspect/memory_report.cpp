// SPDX-License-Identifier: BSD-3-Clause

// Builds the memory report from the live regions, and formats it as text.
#include <remat/inspect/memory_report.h>

#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/engine/held_storage.h>
#include <remat/engine/region.h>
#include <remat/engine/replayer.h>
#include <remat/recording/printable.h>
#include <remat/tape/tape.h>

#include "held_tensors.h"
#include "report_text.h"

namespace remat {
namespace {

enum class Found : uint8_t { kNowhere, kBilled, kNew };

/// Adds the storage, or each of its parts, to `billed`, and the sizes of the new ones to `bytes`.
Found bill(const HeldStorage& storage, std::unordered_set<const void*>& billed, size_t& bytes) {
  if (const auto* const parts = storage.parts()) {
    Found found = Found::kNowhere;
    for (const HeldStorage& part : *parts) found = std::max(found, bill(part, billed, bytes));
    return found;
  }
  const void* const address = storage.address();
  if (!address) return Found::kNowhere;
  if (!billed.insert(address).second) return Found::kBilled;
  bytes += storage.size_bytes();
  return Found::kNew;
}

/// Adds a row for a held tensor, and bills each storage once per report.
void add_row(MemoryRow row, const HeldTensor& held, std::unordered_set<const void*>& billed,
             RegionMemory& memory) {
  if (held.is_leaf) {
    row.why += "; a leaf that requires grad, not billed";
    if (const void* const address = held.storage.address()) billed.insert(address);
  } else {
    const Found found = bill(held.storage, billed, row.bytes);
    if (found == Found::kNowhere) row.why += "; held elsewhere";
    if (found == Found::kBilled) row.why += "; billed above";
  }
  memory.bytes += row.bytes;
  if (row.implicit) memory.implicit_bytes += row.bytes;
  memory.rows.push_back(std::move(row));
}

/// True if the result is kept only because a bare op reads it. False for ops that a rule names.
bool is_implicit(const NamedCall& call, const KeepReason& reason) {
  return reason.kind == KeepReason::Kind::kBareRead && !call.is_op;
}

std::string reason_str(const NamedCall& call, const KeepReason& reason) {
  const std::string kept = call.policy == Policy::kOffload ? "offloaded" : "kept";
  switch (reason.kind) {
    case KeepReason::Kind::kBareRead:
      return kept + (is_implicit(call, reason) ? " implicitly" : "") + ": read by " + reason.reader;
    case KeepReason::Kind::kCallRead:
      return kept + ": read by " + reason.reader + " of a RECOMPUTE call";
    default:
      return kept + ": asked for";
  }
}

/// "result" for a call with one result, else "result 1" or "result 0, 2".
template <class Positions>
std::string result_str(const CallRecord& record, const Positions& positions) {
  std::string text = "result";
  if (record.outputs.size() < 2) return text;
  for (const size_t position : positions)
    text += c10::str(text.back() == 't' ? " " : ", ", position);
  return text;
}

/// Positions of the call's results that lie on the product.
std::vector<size_t> results_on(const CallRecord& record, size_t product) {
  std::vector<size_t> positions;
  for (size_t i = 0; i < record.outputs.size(); ++i) {
    const CallOutput& output = record.outputs[i];
    if (output.source == CallOutput::Source::kProduct && output.product == product)
      positions.push_back(i);
  }
  return positions;
}

MemoryRow row_of_saved(const CallLog& calls, const HeldTensor& held) {
  const CallRecord& record = calls.records()[held.call()];
  const auto& results = held.kept->results;
  const std::string role = results.empty() ? "" : c10::str(" (", result_str(record, results), ")");
  return {.name = c10::str(record.call.name, ": ", held.name, role),
          .tensor = held.meta.str(),
          .why = c10::str(policy_name(record.call.policy), ": saved for backward")};
}

MemoryRow row_of_result(const CallLog& calls, const HeldTensor& held) {
  const CallRecord& record = calls.records()[held.call()];
  const NamedCall& call = record.call;
  const CallProduct& product = *held.product;
  const std::string role =
      product.is_written() ? "written" : result_str(record, results_on(record, held.number));
  return {.name = c10::str(call.name, ": ", role),
          .tensor = held.meta.str(),
          .why = c10::str(policy_name(call.policy), ": ", reason_str(call, product.reason())),
          .implicit = is_implicit(call, product.reason())};
}

MemoryRow row_of(const Region& region, const HeldTensor& held) {
  switch (held.kind) {
    case HeldTensor::Kind::kArgument:
      return {.name = c10::str("argument ", held.number),
              .tensor = held.meta.str(),
              .why = "argument of the function, for the replay"};
    case HeldTensor::Kind::kOfCut:
      return {.name = held.name, .tensor = held.meta.str(), .why = "made before the cut"};
    case HeldTensor::Kind::kOfTape:
      return {.name = held.name, .tensor = held.meta.str(), .why = "held by its tape"};
    case HeldTensor::Kind::kWritten: {
      const bool is_whole = *held.layout == region.outside()[held.number].whole();
      return {.name = c10::str("outside #", held.number),
              .tensor = held.meta.str(),
              .why = c10::str("copy", is_whole ? "" : " of a part",
                              " from before the region wrote it")};
    }
    case HeldTensor::Kind::kSaved:
      return row_of_saved(region.calls(), held);
    case HeldTensor::Kind::kResult:
      return row_of_result(region.calls(), held);
  }
  return {};
}

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

/// Says whether a change frees `wanted` bytes. `before`: true if the changes listed before this
/// change already free that much together.
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

MemoryReport memory_report() {
  MemoryReport report;
  std::unordered_set<const void*> billed;
  std::unordered_set<const RegionPolicy*> policies;
  std::unordered_set<std::string> rules;
  std::vector<std::pair<const Region*, HeldTensor>> held;
  std::vector<std::shared_ptr<const Replayer>> replayers;  // kept alive, because `held` needs them
  const std::vector<std::shared_ptr<const Region>> regions = live_regions();
  for (const std::shared_ptr<const Region>& region : regions) {
    if (!may_be_looked_into(*region)) continue;
    RegionMemory memory{.region = region->label(), .slots = region->live_count(), .rows = {}};
    const Replayer* const replayer = replayers.emplace_back(region->replayer()).get();
    for (HeldTensor& tensor : held_tensors(*region, replayer)) {
      add_row(row_of(*region, tensor), tensor, billed, memory);
      held.emplace_back(region.get(), std::move(tensor));
    }
    const Tape* const tape = replayer ? replayer->tape() : nullptr;
    if (tape) memory.tape_bytes = tape->size_bytes();
    report.bytes += memory.bytes;
    report.implicit_bytes += memory.implicit_bytes;
    report.regions.push_back(std::move(memory));
    if (region->policy() && policies.insert(region->policy()).second) {
      for (const PolicyRule& rule : region->policy()->unmatched()) {
        if (rules.insert(rule.str()).second) report.unmatched_rules.push_back(rule.str());
      }
    }
  }
  report.changes = best_changes(held);
  return report;
}

std::string MemoryReport::str() const {
  std::string text = c10::str("remat holds ", with_separators(bytes), " bytes in ",
                              count_str(regions.size(), "region"));
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
