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
using detail::DamagedBlock;
using detail::EventKind;

[[noreturn]] void fail(const std::string& source, const std::string& rest) {
  throw std::invalid_argument("[recording] " + source + ": " + rest);
}

/// Checks that all strings and layouts that an event names are defined.
class Names {
 public:
  explicit Names(const Recording& recording) : recording_(recording) {}

  void check(const OpEvent& event) const {
    string(event.name);
    string(event.call);
    string(event.line);
    for (const RecordedTensor& tensor : event.arguments) layout(tensor.layout);
    for (const RecordedValue& value : event.values) this->value(value);
    for (const RecordedTensor& tensor : event.results) layout(tensor.layout);
    if (event.end_slot < event.first_slot) throw DamagedBlock("slots that end before they begin");
  }
  void check(const MemoryEvent& event) const {
    constexpr int64_t kMost = int64_t{1} << 44U;
    if (event.bytes > kMost) throw DamagedBlock("more memory than a machine has");
    string(event.device);
  }
  void check(const SaveEvent& event) const { layout(event.tensor.layout); }
  void check(const LoadEvent& /*event*/) const {}
  void check(const NodeEvent& event) const { string(event.name); }
  void check(const RegionEvent& event) const { string(event.label); }
  void check(const ReplayEvent& /*event*/) const {}
  void check(const CallEvent& event) const {
    string(event.name);
    string(event.policy);
  }
  void check(const MarkEvent& event) const { string(event.name); }
  void check(const ThreadEvent& event) const { string(event.name); }
  void check(const PlanEvent& event) const {
    string(event.label);
    string(event.plan);
  }
  void check(const ProcessEvent& event) const {
    string(event.program);
    string(event.torch_version);
  }
  void check(const RecordedLayout& layout) const {
    string(layout.dtype);
    string(layout.device);
    if (!layout.strides.empty() && layout.strides.size() != layout.sizes.size())
      throw DamagedBlock("strides that do not go with their sizes");
  }

 private:
  void string(StringId id) const {
    if (id >= recording_.strings.size()) throw DamagedBlock("a name that nothing defines");
  }
  void value(const RecordedValue& value) const {
    if (value.kind == ValueKind::kText && value.bits >= recording_.strings.size())
      throw DamagedBlock("a text that nothing defines");
  }
  void layout(LayoutId id) const {
    if (id >= recording_.layouts.size()) throw DamagedBlock("a layout that nothing defines");
  }

  const Recording& recording_;
};

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
      } catch (const DamagedBlock& damage) {
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
    ByteReader reader(block.events);
    while (!reader.at_end()) read_event(reader, block.thread);
  }

  void read_event(ByteReader& reader, uint32_t thread) {
    switch (reader.kind()) {
      case EventKind::kString:
        recording_.strings.push_back(reader.text());
        return;
      case EventKind::kLayout:
        recording_.layouts.push_back(checked<RecordedLayout>(reader));
        return;
      case EventKind::kProcess:
        recording_.process = checked<ProcessEvent>(reader);
        return;
      case EventKind::kOp:
        return add(recording_.ops, reader, thread);
      case EventKind::kMemory:
        return add(recording_.memory, reader, thread);
      case EventKind::kSave:
        return add(recording_.saves, reader, thread);
      case EventKind::kLoad:
        return add(recording_.loads, reader, thread);
      case EventKind::kNode:
        return add(recording_.nodes, reader, thread);
      case EventKind::kRegion:
        return add(recording_.regions, reader, thread);
      case EventKind::kReplay:
        return add(recording_.replays, reader, thread);
      case EventKind::kCall:
        return add(recording_.calls, reader, thread);
      case EventKind::kMark:
        return add(recording_.marks, reader, thread);
      case EventKind::kThread:
        return add(recording_.threads, reader, thread);
      case EventKind::kPlan:
        return add(recording_.plans, reader, thread);
    }
    throw DamagedBlock("an event of a kind that there is not");
  }

  template <class Event>
  Event checked(ByteReader& reader) const {
    Event event = reader.event<Event>();
    Names(recording_).check(event);
    return event;
  }

  template <class Event>
  void add(std::vector<OnThread<Event>>& events, ByteReader& reader, uint32_t thread) {
    events.push_back({checked<Event>(reader), thread});
  }

  void sort() {
    const auto by_begin = [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; };
    const auto by_time = [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; };
    std::stable_sort(recording_.ops.begin(), recording_.ops.end(), by_begin);
    std::stable_sort(recording_.nodes.begin(), recording_.nodes.end(), by_begin);
    std::stable_sort(recording_.replays.begin(), recording_.replays.end(), by_begin);
    std::stable_sort(recording_.memory.begin(), recording_.memory.end(), by_time);
    std::stable_sort(recording_.saves.begin(), recording_.saves.end(), by_time);
    std::stable_sort(recording_.loads.begin(), recording_.loads.end(), by_time);
    std::stable_sort(recording_.regions.begin(), recording_.regions.end(), by_time);
    std::stable_sort(recording_.calls.begin(), recording_.calls.end(), by_time);
    std::stable_sort(recording_.marks.begin(), recording_.marks.end(), by_time);
    std::stable_sort(recording_.threads.begin(), recording_.threads.end(), by_time);
    std::stable_sort(recording_.plans.begin(), recording_.plans.end(), by_time);
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
