// SPDX-License-Identifier: BSD-3-Clause

// Writes the events of one thread into a recording.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/inspect/recorder.h>
#include <remat/recording/byte_writer.h>
#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>
#include <remat/tape/named_call.h>
#include <remat/tape/trace_sink.h>

#include "recorded_arguments.h"
#include "recorded_lines.h"
#include "recording_clock.h"

namespace remat {

/// Follows the running ops and nodes of the thread, and writes each event when it is over. The
/// thread itself calls all functions but flush() and close(), which any thread may call at any
/// time.
class ThreadRecorder {
 public:
  ThreadRecorder(std::shared_ptr<RecordingWriter> writer, uint32_t number,
                 const RecordingClock& clock, bool source_lines);

  void begin_op(const at::RecordFunction& function);
  void end_op(const at::RecordFunction& function);
  void begin_node(const at::RecordFunction& node);
  void end_node();

  /// Called before and after the innermost op runs, if a region sees the op.
  void before_op(const TraceScope& scope);
  void after_op(const TraceScope& scope);

  void before_save(const TraceScope& scope, const at::Tensor& tensor);
  void after_save(const TraceScope& scope, bool threw);
  void load(const Region& region, size_t slot);
  void tape_replay(const Region& region, const Region& whole, bool begins);
  /// Returns whether the replay threw.
  bool function_replay(const Region& region, bool begins) {
    return replay(region, begins, /*from_function=*/true);
  }
  void replay_stops();
  void run_record(size_t record, bool begins);
  void call(const TraceScope& scope, const NamedCall& call, CallStep step);
  void end_call(const TraceScope& scope, bool threw);
  void memory(const void* address, int64_t bytes, c10::Device device);
  void mark(std::string_view name);
  void plan(std::string_view label, const PlannedBytes& planned,
            const std::function<std::string()>& json);

  /// Writes the buffered events. Thread-safe.
  void flush();

  /// Writes the buffered events and drops all later ones. Thread-safe.
  void close();

 private:
  struct RunningOp {
    OpEvent event;
    int exceptions = 0;     // in flight when the op began
    bool is_frame = false;  // the engine's range around a node, which is not written
    size_t replays = 0;     // running when the op began
    bool inner_threw = false;
    bool is_stopped = false;  // stopped by a replay that has filled its last slot

    /// Resets for the next op; the vectors keep their memory.
    void clear();
  };
  struct RunningReplay {
    ReplayEvent event;
    int exceptions = 0;
  };
  /// A tensor that autograd is about to save.
  struct PendingSave {
    size_t slot = 0;
    size_t kept = 0;
    RecordedTensor tensor;
  };

  TimeNs now() { return now_ns_ = clock_.now(); }
  StringId name_of(const at::RecordFunction& op);
  StringId device_name(c10::Device device);
  RunningOp* caller_here();
  void begin_in(OpEvent& op, const RunningOp* caller);
  void note_outer_records(OpEvent& op);
  bool replay(const Region& region, bool begins, bool from_function);
  bool is_called_by_engine() const;
  StringId name_of_call(const NamedCall* call);
  void tell_of(const TraceScope& scope);
  template <class Event>
  void add(const Event& event);
  void write_buffer();  // requires mutex_

  const std::shared_ptr<RecordingWriter> writer_;
  const uint32_t number_;
  const RecordingClock clock_;
  TimeNs now_ns_ = 0;  // last reading of clock_
  RecordedArguments arguments_;
  const StringId frame_;  // the name of ranges that are no ops
  RecordedLines lines_;
  std::unordered_map<const char*, StringId> schema_names_;
  int32_t device_ = -1;  // last device, as a number
  StringId device_name_ = 0;
  std::string saved_call_;  // last name looked up
  StringId saved_call_id_ = 0;

  // The first running_ops_ entries are running, the innermost last; the others keep their vectors
  // for later ops.
  std::deque<RunningOp> ops_;
  size_t running_ops_ = 0;
  uint64_t op_number_ = 0;                // number of the op that began last
  uint32_t frames_ = 0;                   // engine ranges that are running
  uint32_t depth_ = 0;                    // depth of the next op
  std::vector<NodeEvent> nodes_;          // running, the innermost last
  std::vector<RunningReplay> replays_;    // running, the innermost last
  uint32_t record_ = OpEvent::kNoRecord;  // the innermost replay's current record
  bool record_is_new_ = false;            // no op of the record has begun
  uint64_t told_region_ = 0;              // last region written to the recording
  const Tape* tape_ = nullptr;      // the tape of told_region_, whose forward keeps it; may be null
  std::vector<PendingSave> saves_;  // the innermost last
  std::vector<std::string> calls_;  // running, the innermost last
  std::set<std::pair<std::string, PlannedBytes>> plans_;  // already written

  std::mutex mutex_;
  detail::ByteWriter buffer_;  // guarded by mutex_
  bool is_closed_ = false;     // guarded by mutex_
};

}  // namespace remat
