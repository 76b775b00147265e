// SPDX-License-Identifier: BSD-3-Clause

// What a recording holds: ops, memory, what autograd saves, replays and backward, as numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace remat {

/// An index into Recording::strings; 0: the empty string.
using StringId = uint32_t;

/// An index into Recording::layouts; 0: no tensor.
using LayoutId = uint32_t;

/// Nanoseconds since the recording began, of a clock that never goes back.
using TimeNs = int64_t;

/// What many tensors share.
struct RecordedLayout {
  StringId dtype = 0;   ///< "float32"
  StringId device = 0;  ///< "cpu", "cuda:0"
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  ///< Empty: contiguous.
  bool requires_grad = false;
  bool operator==(const RecordedLayout&) const = default;
};

/// One tensor that an op was given, has returned, or that autograd saved.
struct RecordedTensor {
  LayoutId layout = 0;
  uint64_t address = 0;  ///< Of its storage; 0: it has none.
  int64_t offset = 0;    ///< Of its first element in the storage, in elements.
  bool operator==(const RecordedTensor&) const = default;
};

enum class ValueKind : uint8_t { kNone, kInt, kDouble, kBool, kText, kList, kOther };

/// An argument of an op that is no tensor.
struct RecordedValue {
  ValueKind kind = ValueKind::kNone;
  /// The number, as its bits; of kText its StringId; of kList how many of the values that follow
  /// are its elements; of kNone and kOther 0.
  uint64_t bits = 0;
  bool operator==(const RecordedValue&) const = default;
};

/// A record on a region's tape.
struct TapePlace {
  uint64_t region = 0;
  uint32_t record = 0;
  bool operator==(const TapePlace&) const = default;
};

enum class OpPhase : uint8_t {
  kOutside,   ///< Outside of regions and of backward
  kForward,   ///< In the forward of a region
  kReplay,    ///< In a replay of a region
  kBackward,  ///< In a node of backward, outside of replays
};

/// "outside", "forward", "replay", "backward"
constexpr const char* phase_name(OpPhase phase) {
  switch (phase) {
    case OpPhase::kOutside:
      return "outside";
    case OpPhase::kForward:
      return "forward";
    case OpPhase::kReplay:
      return "replay";
    case OpPhase::kBackward:
      return "backward";
  }
  return "no phase";
}

/// An op has run, on any thread.
struct OpEvent {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
  uint64_t number = 0;  ///< From 1, in the order in which ops begin on its thread
  StringId name = 0;    ///< "aten::mul.Tensor"
  OpPhase phase = OpPhase::kOutside;
  uint32_t depth = 0;   ///< Ops around it on its thread
  uint64_t region = 0;  ///< Of the innermost region; 0: none.
  uint32_t first_slot =
      0;  ///< Of what autograd saved in it: slots [first_slot, end_slot) of the region,
  uint32_t end_slot = 0;
  uint32_t kept = 0;            ///< and tensors that SAVE and OFFLOAD calls keep.
  uint32_t record = kNoRecord;  ///< On the region's tape
  bool is_seen = false;         ///< By the region itself; a composite op's parts are, it is not.
  StringId call = 0;  ///< The SAVE or OFFLOAD call that it runs in; 0: none, replays run it.
  std::vector<TapePlace> outer_records;  ///< On tapes of regions around its own
  uint64_t sequence = kNoSequence;       ///< Autograd's number of the node that it makes
  StringId line = 0;  ///< "model.py:12 forward", of the program; 0: nobody asked, or there is none.
  bool threw = false;
  std::vector<RecordedTensor> arguments;  ///< Those that are tensors, those in lists too,
  std::vector<RecordedValue> values;      ///< and the others.
  std::vector<RecordedTensor> results;

  /// True if an argument has the storage of that address.
  bool was_given(uint64_t address) const {
    return std::any_of(
        arguments.begin(), arguments.end(),
        [address](const RecordedTensor& argument) { return argument.address == address; });
  }

  static constexpr uint32_t kNoRecord = 0xffffffff;
  static constexpr uint64_t kNoSequence = ~uint64_t{0};
  bool operator==(const OpEvent&) const = default;
};

/// Memory has been allocated or freed.
struct MemoryEvent {
  TimeNs time_ns = 0;
  uint64_t address = 0;
  int64_t bytes = 0;  ///< Negative: freed, of a size that is not to be trusted.
  StringId device = 0;
  uint64_t op = 0;  ///< OpEvent::number of the innermost one that runs on the thread; 0: none.
  bool operator==(const MemoryEvent&) const = default;
};

/// Autograd has saved a tensor in a region.
struct SaveEvent {
  TimeNs time_ns = 0;
  uint64_t region = 0;
  uint32_t slot = 0;
  RecordedTensor tensor;
  bool is_replay = false;
  bool is_kept = false;  ///< By a SAVE or OFFLOAD call; else it is dropped.
  bool operator==(const SaveEvent&) const = default;
};

/// Backward asks for a slot of a region.
struct LoadEvent {
  TimeNs time_ns = 0;
  uint64_t region = 0;
  uint32_t slot = 0;
  bool operator==(const LoadEvent&) const = default;
};

/// A node of backward has run.
struct NodeEvent {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
  StringId name = 0;
  uint64_t sequence = 0;        ///< Autograd's number of the forward op; kNoSequence: it has none.
  uint64_t forward_thread = 0;  ///< ThreadEvent::torch_thread of that op; 0: it has none.

  static constexpr uint64_t kNoSequence = OpEvent::kNoSequence;
  bool operator==(const NodeEvent&) const = default;
};

/// A region, told of before the first event that names it.
struct RegionEvent {
  TimeNs time_ns = 0;
  uint64_t region = 0;
  uint64_t whole = 0;   ///< Of a tape that is cut: the region whose segment this is; else the same.
  uint64_t parent = 0;  ///< The region around it on its thread; 0: none.
  uint32_t depth = 0;   ///< Regions around it
  StringId label = 0;
  bool operator==(const RegionEvent&) const = default;
};

/// A region has run again, from its tape or by its function.
struct ReplayEvent {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
  uint64_t region = 0;
  bool from_function = false;  ///< Else from its tape.
  bool threw = false;
  bool operator==(const ReplayEvent&) const = default;
};

enum class CallStep : uint8_t { kBegins, kEnds, kThrows, kLeftOut };

/// A named call of a region.
struct CallEvent {
  TimeNs time_ns = 0;
  uint64_t region = 0;
  StringId name = 0;
  StringId policy = 0;
  CallStep step = CallStep::kBegins;
  bool is_replay = false;
  bool operator==(const CallEvent&) const = default;
};

/// A moment that the program has named, such as the end of a step.
struct MarkEvent {
  TimeNs time_ns = 0;
  StringId name = 0;
  bool operator==(const MarkEvent&) const = default;
};

/// A thread, told of before its first event.
struct ThreadEvent {
  TimeNs time_ns = 0;
  uint64_t torch_thread = 0;  ///< at::RecordFunction's number of it
  StringId name = 0;          ///< As the system has it: "python3", "pt_autograd_0"
  bool operator==(const ThreadEvent&) const = default;
};

/// A region is going to run by a plan.
struct PlanEvent {
  TimeNs time_ns = 0;
  StringId label = 0;  ///< Of the region
  int64_t budget_bytes = 0;
  int64_t predicted_peak_bytes = 0;
  int64_t plain_peak_bytes = 0;
  StringId plan = 0;  ///< MemoryPlan::to_json()
  bool operator==(const PlanEvent&) const = default;
};

/// Who records: the first event of a recording.
struct ProcessEvent {
  int64_t begin_unix_ns = 0;  ///< When time 0 was, since 1970
  uint64_t pid = 0;
  StringId program = 0;
  StringId torch_version = 0;
  bool operator==(const ProcessEvent&) const = default;
};

}  // namespace remat
