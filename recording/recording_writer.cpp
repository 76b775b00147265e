// SPDX-License-Identifier: BSD-3-Clause

// Appends blocks to the file, each after the definitions that it needs.
#include <remat/recording/recording_writer.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

#include "file_block.h"

namespace remat {

RecordingWriter::RecordingWriter(const std::string& path) : path_(path), owner_(getpid()) {
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw std::invalid_argument("[recording] " + path +
                                ": expected a file that can be written, got '" +
                                std::strerror(errno) + "'. Name another.");
  }
  write_all(detail::file_header());
}

RecordingWriter::~RecordingWriter() {
  close(file_);
}

StringId RecordingWriter::string(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto next = static_cast<StringId>(strings_.size());
  const auto [known, is_new] = strings_.emplace(text, next);
  if (is_new) definitions_.add_string(text);
  return known->second;
}

LayoutId RecordingWriter::layout(const RecordedLayout& layout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto next = static_cast<LayoutId>(layouts_.size() + 1);
  const auto [known, is_new] = layouts_.emplace(layout, next);
  if (is_new) definitions_.add(layout);
  return known->second;
}

void RecordingWriter::write_block(uint32_t thread, std::string_view events) {
  if (getpid() != owner_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!definitions_.bytes().empty()) append(detail::kDefinitions, definitions_.bytes());
  definitions_.clear();
  if (!events.empty()) append(thread, events);
}

std::string RecordingWriter::fault() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

void RecordingWriter::append(uint32_t thread, std::string_view events) {
  std::string block = detail::block_header({thread, events});
  block += events;
  write_all(block);
}

void RecordingWriter::write_all(std::string_view bytes) {
  while (!bytes.empty() && fault_.empty()) {
    const ssize_t written = write(file_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      fault_ = "[recording] " + path_ + ": expected to write on, got '" + std::strerror(errno) +
               "': what follows is left out. Free space, or name another folder.";
    }
  }
}

}  // namespace remat
