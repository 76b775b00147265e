// SPDX-License-Identifier: BSD-3-Clause

#include "program_streams.h"

#include <remat/recording/replay_links.h>

#include "op_comparison.h"
#include "region_labels.h"

namespace remat::detail {
namespace {

StreamKind kind_of(OpPhase phase) {
  if (phase == OpPhase::kReplay) return kReplayStream;
  return phase == OpPhase::kBackward ? kBackwardStream : kProgramStream;
}

}  // namespace

ProgramStreams::ProgramStreams(const Recording& recording)
    : recording_(recording),
      nesting_(recording),
      origins_(argument_origins(recording)),
      forwards_(forward_ops(recording)) {
  for (const auto& thread : recording.threads)
    ranks_.emplace(thread.thread, static_cast<uint32_t>(ranks_.size()));
  for (size_t i = 0; i < recording.ops.size(); ++i) {
    if (nesting_.caller(i) == kNoOp) add(i);
  }
  outside_.resize(streams_.size());
}

void ProgramStreams::add(size_t op) {
  const auto& event = recording_.ops[op];
  const uint32_t rank =
      ranks_.emplace(event.thread, static_cast<uint32_t>(ranks_.size())).first->second;
  const uint32_t stream = rank * kStreamKinds + kind_of(event.phase);
  if (stream >= streams_.size()) streams_.resize((rank + 1) * kStreamKinds);
  places_[op] = {stream, streams_[stream].size()};
  streams_[stream].push_back(op);
}

/// A tensor recomputed by a replay counts as made by the op of the forward.
TensorOrigin ProgramStreams::made_by(size_t maker) const {
  size_t op = maker;
  while (op != kNoOp && forwards_[op] == kNoOp) op = nesting_.caller(op);
  const auto known = places_.find(nesting_.outermost(op == kNoOp ? maker : forwards_[op]));
  if (known == places_.end()) return {};
  const auto [stream, number] = known->second;
  if (stream % kStreamKinds == kReplayStream) return {};
  return {OriginKind::kMade, number, stream, 0, op != kNoOp};
}

std::vector<TensorOrigin> ProgramStreams::origins(uint32_t stream, size_t op) {
  std::vector<TensorOrigin> origins;
  for (size_t i = 0; i < origins_[op].size(); ++i) {
    const StorageOrigin& origin = origins_[op][i];
    origins.emplace_back();
    if (origin.maker != kNoOp) {
      origins.back() = made_by(origin.maker);
    } else if (origin.storage != 0 && !is_number(recording_, recording_.ops[op].arguments[i])) {
      auto& numbers = outside_[stream];
      const size_t number = numbers.emplace(origin.storage, numbers.size()).first->second;
      origins.back() = {OriginKind::kOutside, number, 0, origin.storage};
    }
  }
  return origins;
}

std::vector<std::string> replayed_labels(const Recording& recording) {
  const RegionLabels labels(recording);
  std::vector<std::string> replayed;
  for (const auto& replay : recording.replays) replayed.push_back(labels.of(replay.region));
  return replayed;
}

}  // namespace remat::detail
