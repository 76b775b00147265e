// SPDX-License-Identifier: BSD-3-Clause

// The events of a recording: ops, memory, saved tensors, replays and backward, as numbers.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace remat {

/// An index into Recording::strings; 0 is the empty string.
using StringId = uint32_t;

/// An index into Recording::layouts; 0 means no tensor.
using LayoutId = uint32_t;

/// Nanoseconds since the recording began, on a monotonic clock.
using TimeNs = int64_t;

/// Properties that many tensors share.
struct RecordedLayout {
  StringId dtype = 0;   ///< "float32"
  StringId device = 0;  ///< "cpu", "cuda:0"
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  ///< Empty: contiguous
  bool requires_grad = false;
  auto operator<=>(const RecordedLayout&) const = default;
};

/// A tensor that an op took or returned, or that autograd saved.
struct RecordedTensor {
  LayoutId layout = 0;
  uint64_t address = 0;  ///< Address of its storage; 0: no storage
  int64_t offset = 0;    ///< Offset of its first element in the storage, in elements
  bool operator==(const RecordedTensor&) const = default;
};

enum class ValueKind : uint8_t { kNone, kInt, kDouble, kBool, kText, kList, kOther };

/// An argument of an op, or an element of a list argument, that is no tensor.
struct RecordedValue {
  ValueKind kind = ValueKind::kNone;
  /// Bits of the number; for kText the StringId; for kList the number of values after this one that
  /// are elements of the list; 0 for kNone and kOther.
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
  constexpr const char* kNames[] = {"outside", "forward", "replay", "backward"};
  return kNames[static_cast<size_t>(phase)];
}

/// An op has run, on any thread.
struct OpEvent {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
  uint64_t number = 0;  ///< Number of the op on its thread, from 1, in the order in which ops begin
  StringId name = 0;    ///< "aten::mul.Tensor"
  OpPhase phase = OpPhase::kOutside;
  uint32_t depth = 0;   ///< Number of ops around the op on its thread
  uint64_t region = 0;  ///< The innermost region around the op; 0: none
  /// Slots [first_slot, end_slot) of the region are what autograd saved in the op.
  uint32_t first_slot = 0;
  uint32_t end_slot = 0;
  uint32_t kept = 0;            ///< Number of tensors saved in the op and kept by SAVE or OFFLOAD
  uint32_t record = kNoRecord;  ///< Record on the region's tape
  /// True if `region` sees this op. Of a composite op, a region sees only the ops that it calls.
  bool is_seen = false;
  StringId call = 0;  ///< The SAVE or OFFLOAD call around the op; 0: none, so replays run the op
  StringId keys =
      0;  ///< Dispatch keys of the op's tensors, "CPU, AutogradCPU", if a region sees it
  std::vector<TapePlace> outer_records;  ///< Records of the op on tapes of regions around `region`
  uint64_t sequence = kNoSequence;       ///< Autograd's sequence number of the node the op makes
  /// Line of the program, "model.py:12 forward"; 0: not recorded, or there is none.
  StringId line = 0;
  bool threw = false;
  std::vector<RecordedTensor> arguments;  ///< Tensor arguments, also those in lists
  std::vector<RecordedValue> values;      ///< All other arguments
  std::vector<RecordedTensor> results;

  /// True if the storage of an argument has this address.
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
  int64_t bytes = 0;  ///< Negative for a free, whose size may be wrong
  StringId device = 0;
  uint64_t op = 0;  ///< OpEvent::number of the innermost op running on the thread; 0: none
  bool operator==(const MemoryEvent&) const = default;
};

/// Autograd has saved a tensor in a region.
struct SaveEvent {
  TimeNs time_ns = 0;
  uint64_t region = 0;
  uint32_t slot = 0;
  RecordedTensor tensor;
  bool is_replay = false;
  bool is_kept = false;  ///< True if a SAVE or OFFLOAD call keeps the tensor; false: dropped
  bool operator==(const SaveEvent&) const = default;
};

/// Backward has asked for a slot of a region.
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
  uint64_t sequence = 0;        ///< Autograd's sequence number of the forward op; kNoSequence: none
  uint64_t forward_thread = 0;  ///< ThreadEvent::torch_thread of that op; 0: none

  static constexpr uint64_t kNoSequence = OpEvent::kNoSequence;
  bool operator==(const NodeEvent&) const = default;
};

/// Describes a region. Comes before the first event that names the region.
struct RegionEvent {
  TimeNs time_ns = 0;
  uint64_t region = 0;
  /// For a segment of a cut tape, the region that is cut; otherwise the region itself.
  uint64_t whole = 0;
  uint64_t parent = 0;  ///< The region around this one on its thread; 0: none
  uint32_t depth = 0;   ///< Number of regions around this one
  StringId label = 0;
  bool operator==(const RegionEvent&) const = default;
};

/// A region has been replayed, from its tape or by its function.
struct ReplayEvent {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
  uint64_t region = 0;
  bool from_function = false;  ///< False: from its tape
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

/// Describes a thread. Comes before the first event of the thread.
struct ThreadEvent {
  TimeNs time_ns = 0;
  uint64_t torch_thread = 0;  ///< Number of the thread in at::RecordFunction
  StringId name = 0;          ///< Name in the operating system: "python3", "pt_autograd_0"
  bool operator==(const ThreadEvent&) const = default;
};

/// A region is about to run by a plan.
struct PlanEvent {
  TimeNs time_ns = 0;
  StringId label = 0;  ///< Label of the region
  int64_t budget_bytes = 0;
  int64_t predicted_peak_bytes = 0;
  int64_t plain_peak_bytes = 0;
  StringId plan = 0;  ///< MemoryPlan::to_json()
  bool operator==(const PlanEvent&) const = default;
};

/// The recording process: the first event of a recording.
struct ProcessEvent {
  int64_t begin_unix_ns = 0;  ///< Unix time of time 0
  uint64_t pid = 0;
  StringId program = 0;
  StringId torch_version = 0;
  bool operator==(const ProcessEvent&) const = default;
};

}  // namespace remat
