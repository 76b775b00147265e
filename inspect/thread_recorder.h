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
#include <utility>
#include <vector>

#include <remat/engine/named_call.h>
#include <remat/engine/trace_sink.h>
#include <remat/inspect/recorder.h>
#include <remat/inspect/thread_clock.h>
#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

#include "recorded_ids.h"

namespace remat {

/// The buffered events of one thread, and its clock. The thread itself adds events; any thread may
/// write or close them at any time.
class ThreadEvents {
 public:
  /// `begin_ns`: wall_ns() when the recording began.
  ThreadEvents(std::shared_ptr<RecordingWriter> writer, uint32_t thread, TimeNs begin_ns)
      : writer_(std::move(writer)), thread_(thread), begin_ns_(begin_ns) {}

  /// Nanoseconds since the recording began.
  TimeNs now() { return last_ns_ = wall_ns() - begin_ns_; }
  /// The last reading of now().
  TimeNs last_ns() const { return last_ns_; }

  template <class Event>
  void add(const Event& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return;
    buffer_.add(event);
    if (buffer_.bytes().size() >= kBufferBytes) write_buffer();
  }

  void write() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_closed_) write_buffer();
  }

  /// Writes the events and drops all later ones.
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!std::exchange(is_closed_, true)) write_buffer();
  }

 private:
  /// Size at which the buffer is written out.
  static constexpr size_t kBufferBytes = size_t{64} << 10U;

  void write_buffer() {
    writer_->write_block(thread_, buffer_.bytes());
    buffer_.clear();
  }

  const std::shared_ptr<RecordingWriter> writer_;
  const uint32_t thread_;
  const TimeNs begin_ns_;
  TimeNs last_ns_ = 0;
  std::mutex mutex_;
  detail::ByteWriter buffer_;  // guarded by mutex_
  bool is_closed_ = false;     // guarded by mutex_
};

/// Follows the running ops and nodes of the thread, and writes each event when it is over. The
/// thread itself calls all functions but flush() and close(), which any thread may call at any
/// time.
class ThreadRecorder {
 public:
  /// `begin_ns`: wall_ns() when the recording began.
  ThreadRecorder(const std::shared_ptr<RecordingWriter>& writer, uint32_t number, TimeNs begin_ns,
                 bool source_lines);

  void begin_op(const at::RecordFunction& function);
  void end_op(const at::RecordFunction& function);
  void begin_node(const at::RecordFunction& node);
  void end_node();

  /// Called before and after the innermost op runs, if a region sees the op.
  void before_op(const TraceScope& scope, const OpCall& call);
  void after_op(const TraceScope& scope);

  void before_save(const TraceScope& scope, const at::Tensor& tensor);
  void after_save(const TraceScope& scope, bool threw);
  void load(const Region& region, size_t slot);
  void tape_replay(const Region& region, const Region& whole, bool begins);
  /// Returns true if the replay has ended with an exception.
  bool replay(const Region& region, bool begins, bool from_function);
  void replay_stops();
  void run_record(size_t record, bool begins);
  void call(const TraceScope& scope, const NamedCall& call, CallStep step);
  void end_call(const TraceScope& scope, bool threw);
  void memory(const void* address, int64_t bytes, c10::Device device);
  void mark(std::string_view name);
  void plan(std::string_view label, const PlannedBytes& planned,
            const std::function<std::string()>& json);

  /// Writes the buffered events. Thread-safe.
  void flush() { events_.write(); }

  /// Writes the buffered events and drops all later ones. Thread-safe.
  void close() { events_.close(); }

 private:
  struct RunningOp {
    OpEvent event;
    int exceptions = 0;            // std::uncaught_exceptions() when the op began
    bool is_engine_range = false;  // not an op, but the engine's range around a node; not written
    size_t replays = 0;            // number of replays that were running when the op began
    bool inner_threw = false;      // an op inside this op threw
    bool is_stopped = false;       // stopped by a replay that has filled its last slot

    /// Resets for the next op; the vectors keep their memory.
    void clear();
  };
  struct RunningOps {
    // The first `count` entries are running, the innermost last; the others keep their vectors for
    // later ops.
    std::deque<RunningOp> all;
    size_t count = 0;
    uint64_t number = 0;         // OpEvent::number of the op that began last
    uint32_t depth = 0;          // OpEvent::depth of the next op
    uint32_t engine_ranges = 0;  // number of entries with is_engine_range

    RunningOp* innermost() { return count == 0 ? nullptr : &all[count - 1]; }
  };
  RunningOp* caller_here();
  void begin_in(OpEvent& op, const RunningOp* caller);
  void note_outer_records(OpEvent& op);
  bool is_called_by_engine() const;
  void write_region(const TraceScope& scope);

  ThreadEvents events_;
  RecordedIds ids_;
  RunningOps ops_;
  std::vector<NodeEvent> nodes_;  // running nodes, the innermost last
  // Running replays, the innermost last; each with std::uncaught_exceptions() when it began.
  std::vector<std::pair<ReplayEvent, int>> replays_;
  uint32_t record_ = OpEvent::kNoRecord;  // the innermost replay's current record
  bool record_is_new_ = false;            // true until an op of that record begins
  uint64_t region_ = 0;                   // region of the last RegionEvent written
  const Tape* tape_ = nullptr;            // tape of that region, kept by its forward; may be null
  // Tensors that autograd is about to save, the innermost last.
  std::vector<std::pair<TraceScope, RecordedTensor>> saves_;
  std::vector<std::string> calls_;                        // running calls, the innermost last
  std::set<std::pair<std::string, PlannedBytes>> plans_;  // plans already written
};

}  // namespace remat
