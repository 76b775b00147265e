// SPDX-License-Identifier: BSD-3-Clause

// What one thread writes into a recording.
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

/// Ops and nodes that run on the thread, and events that are over. The thread itself calls all but
/// flush() and close(), which any may call at any time.
class ThreadRecorder {
 public:
  ThreadRecorder(std::shared_ptr<RecordingWriter> writer, uint32_t number,
                 const RecordingClock& clock, bool source_lines);

  void begin_op(const at::RecordFunction& function);
  void end_op(const at::RecordFunction& function);
  void begin_node(const at::RecordFunction& node);
  void end_node();

  /// The innermost op is seen by a region, before and after it runs.
  void before_op(const TraceScope& scope);
  void after_op(const TraceScope& scope);

  void before_save(const TraceScope& scope, const at::Tensor& tensor);
  void after_save(const TraceScope& scope, bool threw);
  void load(const Region& region, size_t slot);
  void tape_replay(const Region& region, const Region& whole, bool begins);
  /// Returns whether it has thrown.
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

  /// Writes what there is. Any thread.
  void flush();

  /// Writes what is left, and no more.
  void close();

 private:
  struct RunningOp {
    OpEvent event;
    int exceptions = 0;     // that were under way when it began
    bool is_frame = false;  // of the engine, around a node: none that is written down
    size_t replays = 0;     // that ran when it began
    bool inner_threw = false;
    bool is_stopped = false;  // by a replay that has what it needs

    /// For the next op: vectors keep their memory.
    void clear();
  };
  struct RunningReplay {
    ReplayEvent event;
    int exceptions = 0;
  };
  /// What autograd is about to save.
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
  void write_buffer();  // with mutex_ held

  const std::shared_ptr<RecordingWriter> writer_;
  const uint32_t number_;
  const RecordingClock clock_;
  TimeNs now_ns_ = 0;  // when it was asked last
  RecordedArguments arguments_;
  const StringId frame_;  // of what is no op
  RecordedLines lines_;
  std::unordered_map<const char*, StringId> schema_names_;
  int32_t device_ = -1;  // the last, as a number
  StringId device_name_ = 0;
  std::string saved_call_;  // the last
  StringId saved_call_id_ = 0;

  std::deque<RunningOp> ops_;  // Up to running_ops_ those that run, the innermost last; the others
                               // keep their vectors for the next.
  size_t running_ops_ = 0;
  uint64_t op_number_ = 0;                // of the op that began last
  uint32_t frames_ = 0;                   // of the engine, that run
  uint32_t depth_ = 0;                    // of the op that begins next
  std::vector<NodeEvent> nodes_;          // that run, the innermost last
  std::vector<RunningReplay> replays_;    // the innermost last
  uint32_t record_ = OpEvent::kNoRecord;  // of the innermost replay, that runs
  bool record_is_new_ = false;            // no op of it has begun
  uint64_t told_region_ = 0;              // the last that the recording was told of
  const Tape* tape_ = nullptr;            // of that region, which its forward keeps; may be null
  std::vector<PendingSave> saves_;        // the innermost last
  std::vector<std::string> calls_;        // that run, the innermost last
  std::set<std::pair<std::string, PlannedBytes>> plans_;  // that the recording was told of

  std::mutex mutex_;
  detail::ByteWriter buffer_;  // guarded by mutex_
  bool is_closed_ = false;     // guarded by mutex_
};

}  // namespace remat
