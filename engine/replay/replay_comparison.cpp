// SPDX-License-Identifier: BSD-3-Clause

// Comparing a replay's ops with the forward's.
#include "replay_comparison.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include <remat/engine/replay_mismatch.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/storage_bytes.h>

namespace remat {
namespace {

std::string describe(c10::ArrayRef<uint64_t> words, const NamedCall* call) {
  return (call ? call->str() : "") + OpLog::describe(words);
}

constexpr const char* kOtherViews =
    " A dispatch mode round the forward or the backward alone makes reshape call other views.";

/// True if `call` is an op that a policy has made a named call.
bool is_op(const NamedCall& call) {
  return call.name.find("::") != std::string::npos;
}

std::string likely_cause(c10::ArrayRef<uint64_t> logged, const NamedCall* expected,
                         c10::ArrayRef<uint64_t> replayed, const NamedCall* got) {
  if (expected && got && expected->name == got->name && expected->policy != got->policy)
    return "Conflicting recompute settings: a call must have the same policy in every run.";
  if (expected && got && expected->name != got->name)
    return std::string("A named call is missing, new or renamed, or they come in another order.") +
           (is_op(*expected) && is_op(*got) ? kOtherViews : "");
  if (expected && !got)
    return "A named call is missing: the function branches on state or on data that has changed.";
  if (got && !expected) return "The replay makes a named call that the forward did not make here.";
  return OpLog::likely_cause(logged, replayed);
}

/// True if OpWords::add_tensor() logs an unknown origin, which it never does for empty tensors.
bool logs_as_unknown(const SeenTensor& seen) {
  return seen.origin.is_unknown() && !(has_layout(*seen.tensor) && seen.tensor->numel() == 0);
}

}  // namespace

const NamedCall* ReplayComparison::call_at(size_t position) const {
  if (!OpLog::is_call(region_.ops().at(position))) return nullptr;
  const auto& records = region_.calls().records();
  const auto record = std::lower_bound(
      records.begin(), records.end(), position,
      [](const CallRecord& entry, size_t wanted) { return entry.log_position < wanted; });
  const bool is_there = record != records.end() && record->log_position == position;
  return is_there ? &record->call : nullptr;
}

void ReplayComparison::call_mismatch(const NamedCall* expected, const NamedCall& got,
                                     size_t slot) const {
  throw ReplayMismatch(c10::str(at_slot(region_, slot), ": expected ",
                                expected ? expected->str() : "no further named call",
                                " as in the forward, got ", got.str(), ". ",
                                likely_cause({}, expected, {}, &got), kMakeItDepend));
}

void ReplayComparison::call_missing(const NamedCall& expected, size_t slot) const {
  throw ReplayMismatch(c10::str(at_slot(region_, slot), ": expected ", expected.str(),
                                " as in the forward, got the end of the function. ",
                                likely_cause({}, &expected, {}, nullptr), kMakeItDepend));
}

void ReplayComparison::compare(c10::ArrayRef<SeenTensor> seen, size_t slot, const NamedCall* call) {
  const c10::ArrayRef<uint64_t> logged = region_.ops().at(position_);
  // Either the forward stopped logging, or it is still running: a backward inside its function has
  // started this replay, which has got further than the log.
  if (logged.empty() && (region_.ops().broken_off() || !region_.closed())) return;
  const c10::ArrayRef<uint64_t> replayed = words_.get();
  if (const OpSites* const sites = region_.op_sites())
    seen_.push_back(OpSites::line(describe(replayed, call), sites->now()));
  const SeenTensor* next = seen.begin();
  const auto may_be_unknown = [&](size_t number) {
    next = std::find_if(next, seen.end(), &logs_as_unknown);
    return memory_.is_same_foreign_memory(number, *(next++)->tensor);
  };
  // If the region draws nothing, generators are not put back, so their positions are not compared.
  const bool draws = region_.draws() || !region_.closed();
  if (!OpWords::match(logged, replayed, draws, may_be_unknown)) mismatch(logged, slot, call);
  position_ += logged.size();
  ++count_;
}

// Checks tensors that a custom function saves. For a tensor that an op saves, the comparison of the
// op's words is enough, because the op has read or made the tensor.
bool ReplayComparison::is_same_part(const Slot& slot, const at::Tensor& tensor) const {
  const bool is_of_user = has_layout(tensor) && !keeps_part();
  const bool is_told = slot.layout != 0 || ReplayMemory::is_known(slot.origin);
  if (!is_of_user || !is_told) return true;
  const at::Tensor& original = saved_original(tensor);
  const uint16_t values = memory_.is_given(original) ? given_hash(original) : 0;
  return slot.layout == (layout_hash(tensor, memory_.moved(original)) ^ values) &&
         memory_.has_origin(original, slot.origin, /*is_saved_by_user=*/!slot.op && !saves_own());
}

std::string ReplayComparison::op_lists() const {
  const OpSites* const sites = region_.op_sites();
  if (!sites) return "";
  std::vector<std::string> forward;
  const OpLog& ops = region_.ops();
  for (size_t position = 0; position < ops.end(); position += ops.at(position).size()) {
    forward.push_back(
        OpSites::line(describe(ops.at(position), call_at(position)), sites->of(forward.size())));
  }
  return c10::str("Ops of the forward:\n", OpSites::numbered(forward),
                  "Ops of the replay, the last one is where it stopped:\n",
                  OpSites::numbered(seen_));
}

void ReplayComparison::mismatch(c10::ArrayRef<uint64_t> logged, size_t slot,
                                const NamedCall* call) const {
  const c10::ArrayRef<uint64_t> replayed = words_.get();
  const NamedCall* const expected = call_at(position_);
  throw ReplayMismatch(c10::str(at_slot(region_, slot), ", op ", count_, ": expected ",
                                describe(logged, expected), " as in the forward, got ",
                                describe(replayed, call), ". ",
                                likely_cause(logged, expected, replayed, call), kMakeItDepend));
}

}  // namespace remat
