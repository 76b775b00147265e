// SPDX-License-Identifier: BSD-3-Clause

// The file of a recording while it is written, and the buffers of the threads that write it.
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

/// Any thread may call anything. After a fork only the process that has made it writes.
class REMAT_API RecordingWriter {
 public:
  /// Writes the file anew. @throws std::invalid_argument if it cannot be opened.
  explicit RecordingWriter(const std::string& path);
  RecordingWriter(const RecordingWriter&) = delete;
  RecordingWriter& operator=(const RecordingWriter&) = delete;
  ~RecordingWriter();

  /// Its number; the same for the same text. Takes a lock: threads remember what they ask often.
  StringId string(std::string_view text);
  LayoutId layout(const RecordedLayout& layout);

  /// Appends events, as a ByteWriter has made them, and before them what they name.
  void write_block(uint32_t thread, std::string_view events);

  /// What the first write that failed said; "": none has. After that nothing more is written.
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
