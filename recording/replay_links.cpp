// SPDX-License-Identifier: BSD-3-Clause

// Links replayed ops to those of the forward: by record for tapes, by order for functions.
#include <remat/recording/replay_links.h>

#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "running_spans.h"

namespace remat {
namespace {

class Linker {
 public:
  explicit Linker(const Recording& recording)
      : recording_(recording),
        replays_(recording.replays),
        next_in_(recording.replays.size(), 0),
        again_(recording.replays.size()),
        links_(recording.ops.size(), kNoOp) {
    for (const auto& region : recording.regions)
      regions_.emplace(region.region, std::pair(region.whole, region.parent));
  }

  void run() {
    for (size_t i = 0; i < recording_.ops.size(); ++i) {
      if (recording_.ops[i].is_seen) look_at(i);
    }
  }

  std::vector<size_t> links() { return std::move(links_); }

  std::vector<FunctionReplay> function_replays() {
    std::vector<FunctionReplay> replays;
    for (size_t i = 0; i < recording_.replays.size(); ++i) {
      const auto& replay = recording_.replays[i];
      if (!replay.from_function) continue;
      replays.push_back({i, replay.region, forwards_[replay.region], std::move(again_[i])});
    }
    return replays;
  }

 private:
  void look_at(size_t i) {
    const auto& op = recording_.ops[i];
    const std::vector<size_t>& running = replays_.at(op.thread, op.begin_ns);
    if (!running.empty() && !recording_.replays[running.back()].from_function) {
      link(i, find(op.region, op.record));
      return;
    }
    // A view makes no record and has the number of the next record. So a record belongs to the last
    // op with its number.
    if (op.record != OpEvent::kNoRecord) records_[key(op.region, op.record)] = i;
    for (const TapePlace& outer : op.outer_records) records_[key(outer.region, outer.record)] = i;
    // The op belongs to its region and to the regions around it, up to the region being replayed.
    uint64_t region = op.region;
    for (size_t most = regions_.size() + 1; region != 0 && most > 0; --most) {
      if (const size_t replay = replay_of(region, running); replay != kNoOp) {
        again_[replay].push_back(i);
        link(i, next_of(replay, op.name));
        return;
      }
      forwards_[region].push_back(i);
      const auto known = regions_.find(region);
      region = known == regions_.end() ? 0 : known->second.second;
    }
  }

  void link(size_t i, size_t forward) {
    if (forward == kNoOp) return;
    links_[i] = links_[forward] == kNoOp ? forward : links_[forward];
  }

  size_t replay_of(uint64_t region, const std::vector<size_t>& running) const {
    for (size_t i = running.size(); i > 0; --i) {
      if (recording_.replays[running[i - 1]].region == region) return running[i - 1];
    }
    return kNoOp;
  }

  /// The next op of the forward that has this name and that the replay has not reached yet. Skips
  /// ops in SAVE and OFFLOAD calls, because such ops do not run again.
  size_t next_of(size_t replay, StringId name) {
    const uint64_t region = recording_.replays[replay].region;
    const std::vector<size_t>& forward = forwards_[region];
    for (size_t at = next_in_[replay]; at < forward.size(); ++at) {
      const auto& op = recording_.ops[forward[at]];
      if (op.name != name || (op.region == region && op.call != 0)) continue;
      next_in_[replay] = at + 1;
      return forward[at];
    }
    return kNoOp;
  }

  std::pair<uint64_t, uint32_t> key(uint64_t region, uint32_t record) const {
    const auto known = regions_.find(region);
    return {known == regions_.end() ? region : known->second.first, record};
  }

  size_t find(uint64_t region, uint32_t record) const {
    const auto known = records_.find(key(region, record));
    return known == records_.end() ? kNoOp : known->second;
  }

  const Recording& recording_;
  detail::RunningSpans<ReplayEvent> replays_;
  std::vector<size_t> next_in_;             // by replay: position in forwards_ of its region
  std::vector<std::vector<size_t>> again_;  // by replay: the ops that it ran
  std::vector<size_t> links_;
  std::unordered_map<uint64_t, std::pair<uint64_t, uint64_t>> regions_;  // by region: whole, parent
  // by region: the ops of its forward, with those of inner regions
  std::unordered_map<uint64_t, std::vector<size_t>> forwards_;
  std::map<std::pair<uint64_t, uint32_t>, size_t> records_;  // ops by whole region and record
};

/// True if `call` names a call that a rule made of the op: "block/aten::mm#3" for "aten::mm".
bool is_call_of(std::string_view call, std::string_view op) {
  const size_t count = call.rfind('#');
  if (count == call.npos || !call.substr(0, count).ends_with(op)) return false;
  return count == op.size() || call[count - op.size() - 1] == '/';
}

}  // namespace

std::vector<size_t> forward_ops(const Recording& recording) {
  Linker linker(recording);
  linker.run();
  return linker.links();
}

std::vector<FunctionReplay> function_replays(const Recording& recording) {
  Linker linker(recording);
  linker.run();
  return linker.function_replays();
}

// Note [Numbers of nodes]: each op records the number that its thread's next node gets. If an op
// makes a node, itself or through the ops that it calls, the innermost such op is the last op that
// recorded the node's number.
std::vector<size_t> ops_of_nodes(const Recording& recording) {
  std::unordered_map<uint32_t, uint64_t> torch_threads;
  for (const auto& thread : recording.threads)
    torch_threads.emplace(thread.thread, thread.torch_thread);
  std::map<std::pair<uint64_t, uint64_t>, size_t> makers;
  for (size_t i = 0; i < recording.ops.size(); ++i) {
    const auto& op = recording.ops[i];
    const auto thread = torch_threads.find(op.thread);
    if (op.sequence != OpEvent::kNoSequence && thread != torch_threads.end())
      makers[{thread->second, op.sequence}] = i;
  }
  std::vector<size_t> ops;
  ops.reserve(recording.nodes.size());
  for (const auto& node : recording.nodes) {
    const auto maker = makers.find({node.forward_thread, node.sequence});
    ops.push_back(maker == makers.end() ? kNoOp : maker->second);
  }
  return ops;
}

std::vector<bool> left_out_ops(const Recording& recording) {
  std::vector<bool> left_out(recording.ops.size(), false);
  detail::RunningSpans<OpEvent> running(recording.ops);
  for (const auto& call : recording.calls) {
    if (call.step != CallStep::kLeftOut) continue;
    const std::string& name = recording.text(call.name);
    const size_t op = running.innermost_at(call.thread, call.time_ns);
    if (op != decltype(running)::kNone && is_call_of(name, recording.text(recording.ops[op].name)))
      left_out[op] = true;
  }
  return left_out;
}

}  // namespace remat
