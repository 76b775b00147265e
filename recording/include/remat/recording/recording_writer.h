// SPDX-License-Identifier: BSD-3-Clause

// Writes a recording file from the buffers of several threads.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <remat/policy/export.h>
#include <remat/recording/events.h>

namespace remat {

/// Thread-safe. After a fork, only the process that constructed the writer writes.
class REMAT_API RecordingWriter {
 public:
  /// Creates or truncates the file. @throws std::invalid_argument if it cannot be opened.
  explicit RecordingWriter(const std::string& path);
  RecordingWriter(const RecordingWriter&) = delete;
  RecordingWriter& operator=(const RecordingWriter&) = delete;
  ~RecordingWriter();

  /// The id of `text`; equal texts have equal ids. Takes a lock: threads should cache frequent ids.
  StringId string(std::string_view text);
  LayoutId layout(const RecordedLayout& layout);

  /// Appends events that a ByteWriter encoded, after any definitions that they need.
  void write_block(uint32_t thread, std::string_view events);

  /// Error text of the first failed write; empty if none failed. Nothing is written after a
  /// failure.
  std::string fault() const;

 private:
  void append(uint32_t thread, std::string_view events);
  void write_all(std::string_view bytes);

  struct Definitions;

  const std::string path_;
  const pid_t owner_;
  int file_ = -1;
  mutable std::mutex mutex_;
  const std::unique_ptr<Definitions> definitions_;  // guarded by mutex_
  std::string fault_;                               // guarded by mutex_
};

}  // namespace remat
