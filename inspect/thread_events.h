// SPDX-License-Identifier: BSD-3-Clause

// The buffered events of one thread, and its clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include <remat/inspect/thread_clock.h>
#include <remat/recording/byte_writer.h>
#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

namespace remat {

/// The thread itself adds events; any thread may write or close them at any time.
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

}  // namespace remat
