// SPDX-License-Identifier: BSD-3-Clause

// Compares two sequences of ops side by side up to the first difference.
#include <remat/recording/recording_diff.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>

#include "op_comparison.h"
#include "program_streams.h"
#include "region_labels.h"
#include "replay_sides.h"

namespace remat {
namespace {

using detail::ComparedOp;
using detail::kReplayStream;
using detail::kStreamKinds;
using detail::OutsidePairs;
using detail::ProgramStreams;
using detail::ReplaySides;
using detail::TensorOrigin;

constexpr size_t kShownBefore = 3;
// most ops that one side may have alone and still count as extra ops
constexpr size_t kMostExtra = 8;

struct OpSequence {
  const Recording& recording;
  const std::vector<size_t>& ops;
  std::function<std::vector<TensorOrigin>(size_t op)> origins;
  bool is_cut = false;  ///< True if the sequence stops early although the run would have gone on.
  bool threw = false;   ///< True if the last op threw, or something after it.

  bool has(size_t i) const { return i < ops.size(); }
  const std::string& name(size_t i) const { return recording.text(recording.ops[ops[i]].name); }
  ComparedOp at(size_t i) const { return {recording, ops[i], origins(ops[i])}; }
  bool throws_at(size_t i) const {
    return threw && i + 1 == ops.size() && recording.ops[ops[i]].threw;
  }
};

class SequenceComparison {
 public:
  SequenceComparison(OpSequence a, OpSequence b, OutsidePairs& pairs, uint32_t stream)
      : a_(std::move(a)), b_(std::move(b)), pairs_(pairs), stream_(stream) {}

  std::optional<RecordingDifference> run() {
    size_t i = 0;
    for (; a_.has(i) && b_.has(i); ++i) {
      if (a_.name(i) != b_.name(i)) return difference(i, cause_of_other_op(i));
      const ComparedOp a = a_.at(i);
      const ComparedOp b = b_.at(i);
      if (const auto cause = detail::cause_of(a, b, pairs_, b_.throws_at(i)))
        return difference(i, *cause, &a, &b);
      if (b_.throws_at(i)) return difference(i, cause_of_nothing(b), &a, &b);
      before_.push_back(i);
      if (before_.size() > kShownBefore) before_.pop_front();
    }
    if (b_.has(i)) return difference(i, DifferenceCause::kExtraOp);
    const bool has_begun = !b_.threw || !b_.ops.empty();
    if (a_.has(i) && !b_.is_cut && has_begun) return difference(i, DifferenceCause::kMissingOp);
    if (b_.threw) return difference(i, DifferenceCause::kUnrecorded);
    return std::nullopt;
  }

 private:
  /// A number that is passed as a tensor is a value of the program.
  static DifferenceCause cause_of_nothing(const ComparedOp& op) {
    const auto& arguments = op.event().arguments;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (detail::is_number(op.recording, arguments[i]) &&
          op.origins[i].kind != detail::OriginKind::kMade)
        return DifferenceCause::kNumber;
    }
    return DifferenceCause::kUnrecorded;
  }

  DifferenceCause cause_of_other_op(size_t i) const {
    const std::string& a = a_.name(i);
    const std::string& b = b_.name(i);
    if (detail::is_cast(a) || detail::is_cast(b)) return DifferenceCause::kCast;
    if (detail::depends_on_training(a) || detail::depends_on_training(b))
      return DifferenceCause::kTraining;
    if (a_.has(i + 1) && b_.has(i + 1) && a_.name(i + 1) == b && b_.name(i + 1) == a)
      return DifferenceCause::kOrder;
    for (size_t more = 1; more <= kMostExtra; ++more) {
      if (goes_on(i, i + more)) return DifferenceCause::kExtraOp;
      if (goes_on(i + more, i)) return DifferenceCause::kMissingOp;
    }
    return DifferenceCause::kBranch;
  }

  /// True if the next two ops are the same, or one is and both sequences end after it.
  bool goes_on(size_t a, size_t b) const {
    for (size_t i = 0; i < 2; ++i, ++a, ++b) {
      if (a_.has(a) != b_.has(b)) return false;
      if (!a_.has(a)) return i > 0;
      if (a_.name(a) != b_.name(b)) return false;
    }
    return true;
  }

  RecordingDifference difference(size_t i, DifferenceCause cause, const ComparedOp* a = nullptr,
                                 const ComparedOp* b = nullptr) {
    RecordingDifference found;
    found.cause = cause;
    found.number = i;
    for (const size_t before : before_) found.before.push_back(words(b_, before, b_.at(before)));
    found.first_words = words(a_, i, a ? *a : at(a_, i));
    found.second_words = words(b_, i, b ? *b : at(b_, i));
    if (a_.has(i)) {
      found.first = a_.ops[i];
      found.first_line = a_.recording.text(a_.recording.ops[found.first].line);
    }
    if (b_.has(i)) {
      found.second = b_.ops[i];
      found.second_line = b_.recording.text(b_.recording.ops[found.second].line);
    }
    const OpSequence& side = b_.has(i) ? b_ : a_;
    if (side.has(i)) {
      const uint64_t region = side.recording.ops[side.ops[i]].region;
      found.region = detail::RegionLabels(side.recording).of(region);
    }
    return found;
  }

  static ComparedOp at(const OpSequence& side, size_t i) {
    return side.has(i) ? side.at(i) : ComparedOp{side.recording, 0, {}};
  }

  std::string words(const OpSequence& side, size_t i, const ComparedOp& op) const {
    if (!side.has(i)) return "the end";
    return detail::op_words(side.recording, side.ops[i], op.origins, stream_);
  }

  const OpSequence a_;
  const OpSequence b_;
  OutsidePairs& pairs_;
  const uint32_t stream_;
  std::deque<size_t> before_;
};

/// The ops of a stream; empty if there is no such stream.
const std::vector<size_t>& stream_of(const ProgramStreams& program, uint32_t stream) {
  static const std::vector<size_t> none;
  return stream < program.streams().size() ? program.streams()[stream] : none;
}

std::optional<RecordingDifference> difference_of(const ReplaySides& sides,
                                                 const Recording& recording,
                                                 const FunctionReplay& replay) {
  const bool threw = recording.replays[replay.replay].threw;
  OutsidePairs pairs(sides.outside());
  SequenceComparison comparison(
      {recording, sides.forward(), [&](size_t op) { return sides.forward_origins(op); }},
      {recording, sides.again(), [&](size_t op) { return sides.replay_origins(op); }, !threw,
       threw},
      pairs, 0);
  auto found = comparison.run();
  if (!found) return found;
  found->replay = replay.replay;
  if (found->region.empty()) found->region = detail::RegionLabels(recording).of(replay.region);
  return found;
}

}  // namespace

std::optional<RecordingDifference> first_difference(const Recording& a, const Recording& b) {
  ProgramStreams first(a);
  ProgramStreams second(b);
  const std::vector<std::string> replayed = detail::replayed_labels(a);
  const bool with_replays = replayed == detail::replayed_labels(b);
  const size_t streams = std::max(first.streams().size(), second.streams().size());
  OutsidePairs pairs;
  for (uint32_t stream = 0; stream < streams; ++stream) {
    if (stream % kStreamKinds == kReplayStream && !with_replays) continue;
    SequenceComparison comparison(
        {a, stream_of(first, stream), [&](size_t op) { return first.origins(stream, op); }},
        {b, stream_of(second, stream), [&](size_t op) { return second.origins(stream, op); }},
        pairs, stream);
    if (auto found = comparison.run()) {
      found->thread = stream / kStreamKinds;
      return found;
    }
  }
  return std::nullopt;
}

std::vector<RecordingDifference> replay_differences(const Recording& recording) {
  const detail::RecordedOrigins origins(recording);
  std::vector<RecordingDifference> differences;
  for (const FunctionReplay& replay : function_replays(recording)) {
    // The recording may have begun after the forward.
    if (replay.forward.empty() && !recording.replays[replay.replay].threw) continue;
    const ReplaySides sides(origins, replay);
    if (auto found = difference_of(sides, recording, replay))
      differences.push_back(std::move(*found));
  }
  return differences;
}

}  // namespace remat
