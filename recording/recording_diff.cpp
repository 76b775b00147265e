// SPDX-License-Identifier: BSD-3-Clause

// Compares two sequences of ops side by side up to the first difference.
#include <remat/recording/recording_diff.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <remat/recording/region_labels.h>
#include <remat/recording/replay_links.h>

#include "op_comparison.h"
#include "storage_origins.h"

namespace remat {
namespace {

using detail::ComparedOp;
using detail::kStreamKinds;
using detail::OriginKind;
using detail::OutsidePairs;
using detail::StorageOrigin;
using detail::TensorOrigin;

constexpr size_t kShownBefore = 3;
// If one side has more ops than this that the other lacks, the cause is a branch, not extra ops.
constexpr size_t kMostExtra = 8;

struct OpSequence {
  const Recording& recording;
  const std::vector<size_t>& ops;
  std::function<std::vector<TensorOrigin>(size_t op)> origins;
  bool is_cut = false;  ///< True if the sequence may end before the run is complete (early stop).
  bool threw = false;   ///< True if the last op threw, or code that ran after it.

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
  /// The cause if the last op of a replay threw although no recorded difference shows why. Values
  /// of tensors are not recorded, so if an argument may be a number, the number probably differs.
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

  /// True if the sequences, from positions `a` and `b`, go on with two ops of equal names, or with
  /// one such op and then end.
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

/// The call tree of a recording's ops, and the storages of their arguments.
struct RecordedOrigins {
  explicit RecordedOrigins(const Recording& all)
      : recording(all), nesting(all), arguments(detail::argument_origins(all)) {}

  const std::string& name(size_t op) const { return recording.text(recording.ops[op].name); }

  const Recording& recording;
  const detail::OpNesting nesting;
  const std::vector<std::vector<StorageOrigin>> arguments;
};

/// A program's ops as sequences that can be compared with those of another run.
class ProgramStreams {
 public:
  explicit ProgramStreams(const Recording& recording)
      : all_(recording), forwards_(forward_ops(recording)) {
    for (const auto& thread : recording.threads)
      ranks_.emplace(thread.thread, static_cast<uint32_t>(ranks_.size()));
    for (size_t i = 0; i < recording.ops.size(); ++i) {
      if (all_.nesting.caller(i) == kNoOp) add(i);
    }
    outside_.resize(streams_.size());
  }

  size_t size() const { return streams_.size(); }

  /// Outermost ops of a stream (see StreamKind). Origins must be asked for in their order, because
  /// outside storages are numbered when they are first met.
  OpSequence sequence(uint32_t stream) {
    static const std::vector<size_t> none;
    return {all_.recording, stream < streams_.size() ? streams_[stream] : none,
            [this, stream](size_t op) { return origins(stream, op); }};
  }

 private:
  void add(size_t op) {
    const auto& event = all_.recording.ops[op];
    const uint32_t rank =
        ranks_.emplace(event.thread, static_cast<uint32_t>(ranks_.size())).first->second;
    const uint32_t stream = rank * kStreamKinds + kind_of(event.phase);
    if (stream >= streams_.size()) streams_.resize((rank + 1) * kStreamKinds);
    places_[op] = {stream, streams_[stream].size()};
    streams_[stream].push_back(op);
  }

  static detail::StreamKind kind_of(OpPhase phase) {
    if (phase == OpPhase::kReplay) return detail::kReplayStream;
    return phase == OpPhase::kBackward ? detail::kBackwardStream : detail::kProgramStream;
  }

  std::vector<TensorOrigin> origins(uint32_t stream, size_t op) {
    const std::vector<StorageOrigin>& arguments = all_.arguments[op];
    std::vector<TensorOrigin> origins(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].maker != kNoOp) {
        origins[i] = made_by(arguments[i].maker);
      } else if (arguments[i].storage != 0 &&
                 !detail::is_number(all_.recording, all_.recording.ops[op].arguments[i])) {
        auto& numbers = outside_[stream];
        const size_t number = numbers.emplace(arguments[i].storage, numbers.size()).first->second;
        origins[i] = {OriginKind::kOutside, number, 0, arguments[i].storage};
      }
    }
    return origins;
  }

  /// A tensor recomputed by a replay counts as made by the op of the forward.
  TensorOrigin made_by(size_t maker) const {
    size_t op = maker;
    while (op != kNoOp && forwards_[op] == kNoOp) op = all_.nesting.caller(op);
    const auto known = places_.find(all_.nesting.outermost(op == kNoOp ? maker : forwards_[op]));
    if (known == places_.end()) return {};
    const auto [stream, number] = known->second;
    if (stream % kStreamKinds == detail::kReplayStream) return {};
    return {OriginKind::kMade, number, stream, 0, op != kNoOp};
  }

  const RecordedOrigins all_;
  const std::vector<size_t> forwards_;
  std::unordered_map<uint32_t, uint32_t> ranks_;  // by thread, in the order in which threads began
  std::vector<std::vector<size_t>> streams_;
  std::unordered_map<size_t, std::pair<uint32_t, size_t>> places_;  // stream and number by op
  std::vector<std::unordered_map<uint64_t, size_t>> outside_;       // numbers by stream and storage
};

/// A replay and its forward as sequences of ops that can be compared. They leave out views, casts
/// of weights (which may come from a cache) and ops that do not run again.
class ReplaySides {
 public:
  ReplaySides(const RecordedOrigins& origins, const FunctionReplay& replay)
      : all_(origins),
        forward_(compared(replay, replay.forward)),
        again_(compared(replay, replay.again)) {
    for (const size_t op : forward_) in_forward_.emplace(op, in_forward_.size());
    for (const size_t op : again_) in_again_.emplace(op, in_again_.size());
    for (const size_t op : forward_) {
      for (const TensorOrigin& origin : origins_of(op, in_forward_)) {
        if (origin.kind == OriginKind::kOutside) outside_.emplace(origin.storage, outside_.size());
      }
    }
  }

  OpSequence forward() const {
    return {all_.recording, forward_, [this](size_t op) { return origins_of(op, in_forward_); }};
  }
  OpSequence again(bool threw) const {
    return {all_.recording, again_, [this](size_t op) { return origins_of(op, in_again_); }, !threw,
            threw};
  }

  /// Numbers of outside storages in the order in which the forward first used them.
  const std::unordered_map<uint64_t, size_t>& outside() const { return outside_; }

 private:
  using Numbers = std::unordered_map<size_t, size_t>;  // by op

  std::vector<size_t> compared(const FunctionReplay& replay, const std::vector<size_t>& ops) {
    const std::unordered_set<size_t> all(ops.begin(), ops.end());
    std::vector<size_t> left;
    for (const size_t op : ops) {
      if (detail::is_view(all_.name(op))) continue;
      if (replay.runs_again(all_.recording.ops[op]) && !is_weight_cast(op, all)) {
        left.push_back(op);
      } else {
        left_out_.insert(op);
      }
    }
    return left;
  }

  /// True for a cast to half precision of a float32 tensor that requires grad and that none of the
  /// ops `inside` made.
  bool is_weight_cast(size_t op, const std::unordered_set<size_t>& inside) const {
    const Recording& recording = all_.recording;
    const auto& event = recording.ops[op];
    if (!detail::is_cast(all_.name(op)) || event.arguments.empty() || event.results.empty())
      return false;
    const RecordedLayout& from = recording.layouts[event.arguments[0].layout];
    const std::string& to = recording.text(recording.layouts[event.results[0].layout].dtype);
    if (!from.requires_grad || recording.text(from.dtype) != "float32" ||
        (to != "bfloat16" && to != "float16"))
      return false;
    size_t maker = all_.arguments[op][0].maker;
    while (maker != kNoOp && inside.count(maker) == 0) maker = all_.nesting.caller(maker);
    return maker == kNoOp;
  }

  std::vector<TensorOrigin> origins_of(size_t op, const Numbers& numbers) const {
    std::vector<TensorOrigin> origins;
    for (size_t i = 0; i < all_.arguments[op].size(); ++i) {
      origins.push_back(origin_of(all_.arguments[op][i], numbers));
      if (origins.back().kind == OriginKind::kOutside &&
          detail::is_number(all_.recording, all_.recording.ops[op].arguments[i]))
        origins.back() = {};
    }
    return origins;
  }

  TensorOrigin origin_of(const StorageOrigin& origin, const Numbers& numbers) const {
    if (origin.storage == 0) return {};
    for (size_t op = origin.maker; op != kNoOp; op = all_.nesting.caller(op)) {
      const auto known = numbers.find(op);
      if (known != numbers.end()) return {OriginKind::kMade, known->second, 0, origin.storage};
      if (left_out_.count(op) > 0) return {};
    }
    const auto met = outside_.find(origin.storage);
    const size_t number = met == outside_.end() ? TensorOrigin::kElsewhere : met->second;
    return {OriginKind::kOutside, number, 0, origin.storage};
  }

  const RecordedOrigins& all_;
  std::unordered_set<size_t> left_out_;
  std::vector<size_t> forward_;
  std::vector<size_t> again_;
  Numbers in_forward_;
  Numbers in_again_;
  std::unordered_map<uint64_t, size_t> outside_;
};

std::vector<std::string> replayed_labels(const Recording& recording) {
  const detail::RegionLabels labels(recording);
  std::vector<std::string> replayed;
  for (const auto& replay : recording.replays) replayed.push_back(labels.of(replay.region));
  return replayed;
}

}  // namespace

std::optional<RecordingDifference> first_difference(const Recording& a, const Recording& b) {
  ProgramStreams first(a);
  ProgramStreams second(b);
  const bool with_replays = replayed_labels(a) == replayed_labels(b);
  OutsidePairs pairs;
  for (uint32_t stream = 0; stream < std::max(first.size(), second.size()); ++stream) {
    if (stream % kStreamKinds == detail::kReplayStream && !with_replays) continue;
    SequenceComparison comparison(first.sequence(stream), second.sequence(stream), pairs, stream);
    if (auto found = comparison.run()) {
      found->thread = stream / kStreamKinds;
      return found;
    }
  }
  return std::nullopt;
}

std::vector<RecordingDifference> replay_differences(const Recording& recording) {
  const RecordedOrigins origins(recording);
  std::vector<RecordingDifference> differences;
  for (const FunctionReplay& replay : function_replays(recording)) {
    const bool threw = recording.replays[replay.replay].threw;
    // The recording may have begun after the forward, which then has no ops to compare.
    if (replay.forward.empty() && !threw) continue;
    const ReplaySides sides(origins, replay);
    OutsidePairs pairs(sides.outside());
    auto found = SequenceComparison(sides.forward(), sides.again(threw), pairs, 0).run();
    if (!found) continue;
    found->replay = replay.replay;
    if (found->region.empty()) found->region = detail::RegionLabels(recording).of(replay.region);
    differences.push_back(std::move(*found));
  }
  return differences;
}

}  // namespace remat
