// SPDX-License-Identifier: BSD-3-Clause

// Reads a recording block by block, up to the first damage.
#include <remat/recording/recording.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "byte_reader.h"
#include "file_block.h"

namespace remat {
namespace {

using detail::ByteReader;

[[noreturn]] void fail(const std::string& source, const std::string& rest) {
  throw std::invalid_argument("[recording] " + source + ": " + rest);
}

/// Calls fn with each list of events.
template <class Fn>
void for_each_list(Recording& recording, Fn&& fn) {
  fn(recording.ops);
  fn(recording.memory);
  fn(recording.saves);
  fn(recording.loads);
  fn(recording.nodes);
  fn(recording.regions);
  fn(recording.replays);
  fn(recording.calls);
  fn(recording.marks);
  fn(recording.threads);
  fn(recording.plans);
}

template <class Event>
TimeNs time_of(const Event& event) {
  if constexpr (requires { event.begin_ns; }) {
    return event.begin_ns;
  } else {
    return event.time_ns;
  }
}

class RecordingReader {
 public:
  Recording run(std::string_view bytes, const std::string& source) {
    check_header(bytes, source);
    recording_.strings.emplace_back();
    recording_.layouts.emplace_back();
    size_t at = detail::kFileHeaderBytes;
    while (at < bytes.size()) {
      const auto block = detail::first_block(bytes.substr(at));
      if (!block) {
        damaged(at, "got one that is cut off or changed");
        break;
      }
      try {
        read(*block);
      } catch (const std::runtime_error& damage) {
        damaged(at, std::string("got ") + damage.what());
        break;
      }
      at += detail::kBlockHeaderBytes + block->events.size();
    }
    sort();
    return std::move(recording_);
  }

 private:
  static void check_header(std::string_view bytes, const std::string& source) {
    const auto version = detail::file_version(bytes);
    if (!version)
      fail(source, "expected a recording, got another file. Name what a Recorder has written.");
    if (*version != detail::kFileVersion) {
      fail(source, "expected version " + std::to_string(detail::kFileVersion) + ", got " +
                       std::to_string(*version) +
                       ". Read it with the remat that wrote it, or record again.");
    }
  }

  void damaged(size_t at, const std::string& got) {
    recording_.damage = "at byte " + std::to_string(at) + ": expected a block of events, " + got;
  }

  void read(const detail::FileBlock& block) {
    ByteReader reader(block.events, recording_);
    while (!reader.at_end()) read_record(reader, block.thread);
  }

  void read_record(ByteReader& reader, uint32_t thread) {
    const uint8_t kind = reader.kind();
    if (kind == detail::kStringKind) return recording_.strings.push_back(reader.text());
    if (kind == detail::kind_of<RecordedLayout>())
      return recording_.layouts.push_back(reader.event<RecordedLayout>());
    bool is_known = kind == detail::kind_of<ProcessEvent>();
    if (is_known) recording_.process = reader.event<ProcessEvent>();
    for_each_list(recording_, [&]<class Event>(std::vector<OnThread<Event>>& events) {
      if (kind != detail::kind_of<Event>()) return;
      events.push_back({reader.event<Event>(), thread});
      is_known = true;
    });
    reader.expect(is_known, "an event of an unknown kind");
  }

  void sort() {
    for_each_list(recording_, [](auto& events) {
      std::stable_sort(events.begin(), events.end(),
                       [](const auto& a, const auto& b) { return time_of(a) < time_of(b); });
    });
  }

  Recording recording_;
};

}  // namespace

std::string Recording::words_of(const RecordedTensor& tensor) const {
  if (tensor.layout == 0) return "none";
  const RecordedLayout& layout = layouts[tensor.layout];
  std::string words = text(layout.dtype) + " [";
  for (size_t i = 0; i < layout.sizes.size(); ++i)
    words += (i > 0 ? ", " : "") + std::to_string(layout.sizes[i]);
  return words + "]";
}

Recording Recording::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  if (!file || (file.peek() != std::ifstream::traits_type::eof() && !(bytes << file.rdbuf())))
    fail(path, "expected a file that can be read. Correct the path.");
  return from_bytes(bytes.str(), path);
}

Recording Recording::from_bytes(std::string_view bytes, const std::string& source) {
  return RecordingReader().run(bytes, source);
}

}  // namespace remat
