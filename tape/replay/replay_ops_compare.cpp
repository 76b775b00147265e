// SPDX-License-Identifier: BSD-3-Clause

// Comparing a replay's ops with the forward's.
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <remat/tape/replay_mismatch.h>

#include "op_writer.h"
#include "replay_ops.h"

namespace remat {
namespace {

std::string describe(c10::ArrayRef<uint64_t> words, const NamedCall* call) {
  return (call ? call->str() : "") + OpLog::describe(words);
}

constexpr const char* kOtherViews =
    " A dispatch mode round the forward or the backward alone makes reshape call other views.";

/// A policy made a call of it.
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

}  // namespace

void ReplayOps::compare_call(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments,
                             size_t slot) {
  words_.clear();
  unknown_.clear();
  write_call(words_, call.hash(), arguments, region_, *this);
  compare(slot, &call);
}

int64_t ReplayOps::moved(const at::Tensor& tensor) const {
  for (const Moved& argument : moved_) {
    if (argument.memory == memory_of(tensor)) return argument.bytes;
  }
  return 0;
}

const NamedCall* ReplayOps::call_at(size_t position) const {
  if (!OpLog::is_call(region_.ops().at(position))) return nullptr;
  const auto& records = region_.calls().records();
  const auto record = std::lower_bound(
      records.begin(), records.end(), position,
      [](const CallRecord& entry, size_t wanted) { return entry.log_position < wanted; });
  const bool is_there = record != records.end() && record->log_position == position;
  return is_there ? &record->call : nullptr;
}

void ReplayOps::call_mismatch(const NamedCall* expected, const NamedCall& got, size_t slot) const {
  throw ReplayMismatch(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(where(slot), ": expected ", expected ? expected->str() : "no further named call",
               " as in the forward, got ", got.str(), ". ", likely_cause({}, expected, {}, &got),
               kMakeItDepend));
}

void ReplayOps::call_missing(const NamedCall& expected, size_t slot) const {
  throw ReplayMismatch({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                       c10::str(where(slot), ": expected ", expected.str(),
                                " as in the forward, got the end of the function. ",
                                likely_cause({}, &expected, {}, nullptr), kMakeItDepend));
}

/// Memory that no op of LibTorch allocated (from_blob) may have been wrapped in the forward, and
/// again now; if so, the forward's is gone.
bool ReplayOps::is_same_foreign_memory(size_t number, const c10::Storage& storage) {
  const OutsideStorage& outside = region_.outside()[number];
  if (!storage || !outside.is_gone_foreign_memory() || !outside.has_bytes_of(storage)) return false;
  storages_.enter(storage.unsafeGetStorageImpl(), Origin::outside(number));
  matched_.emplace_back(storage.getWeakStorageImpl());
  return true;
}

bool ReplayOps::has_origin(const at::Tensor& tensor, Origin logged) {
  const Origin now = region_.outside().logged(origin_of(tensor));
  const bool is_viewed = logged.is_outside() && now.is_inside() &&
                         std::find(viewed_unknown_.begin(), viewed_unknown_.end(),
                                   memory_of(tensor)) != viewed_unknown_.end();
  if (now.value() == logged.value() || !is_known(logged)) return true;
  if (!is_viewed && !is_known(now)) return true;
  if ((!is_viewed && !now.is_unknown()) || !logged.is_outside()) return false;
  // What an op keeps for itself is made below autograd, by no op that is seen, and dies.
  const OutsideStorage& outside = region_.outside()[logged.number()];
  const bool is_made_again =
      outside.is_gone() && (!has_layout(tensor) || outside.may_be_saved(tensor.storage()));
  return is_made_again ||
         (tensor.has_storage() && is_same_foreign_memory(logged.number(), tensor.storage()));
}

void ReplayOps::compare(size_t slot, const NamedCall* call) {
  const c10::ArrayRef<uint64_t> logged = region_.ops().at(position_);
  // The forward stopped writing down; or its region is still open, for a backward inside it, and
  // the replay gets further.
  if (logged.empty() && (region_.ops().broken_off() || !region_.closed())) return;
  const c10::ArrayRef<uint64_t> replayed = words_.get();
  if (const OpSites* const sites = region_.op_sites())
    seen_.push_back(OpSites::line(describe(replayed, call), sites->now()));
  size_t next_unknown = 0;
  const auto may_be_unknown = [&](size_t number) {
    return is_same_foreign_memory(number, unknown_[next_unknown++]);
  };
  // A region that draws nothing finds generators where later code has left them.
  const bool draws = region_.draws() || !region_.closed();
  if (!OpWords::match(logged, replayed, draws, may_be_unknown))
    mismatch(logged, replayed, slot, call);
  position_ += logged.size();
  ++op_count_;
}

std::string ReplayOps::op_lists() const {
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

void ReplayOps::mismatch(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed,
                         size_t slot, const NamedCall* call) const {
  const NamedCall* const expected = call_at(position_);
  throw ReplayMismatch(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(where(slot), ", op ", op_count_, ": expected ", describe(logged, expected),
               " as in the forward, got ", describe(replayed, call), ". ",
               likely_cause(logged, expected, replayed, call), kMakeItDepend));
}

}  // namespace remat
