// SPDX-License-Identifier: BSD-3-Clause

// Reads a recording block by block, up to the first damage.
#include <remat/recording/recording.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include <remat/recording/event_fields.h>

#include "file_block.h"

namespace remat {
namespace {

using detail::visit_fields;

/// Decodes the bytes of a detail::ByteWriter. Throws std::runtime_error for invalid bytes, also if
/// they refer to strings or layouts that `names` does not have. Allocates no more items than the
/// bytes can encode, even if they claim more.
class ByteReader {
 public:
  ByteReader(std::string_view bytes, const Recording& names) : bytes_(bytes), names_(names) {}

  bool at_end() const { return next_ == bytes_.size(); }
  uint8_t kind() { return byte(); }

  template <class Event>
  Event event() {
    Event read;
    visit_fields(read, *this);
    return read;
  }

  std::string text() {
    const size_t size = count();
    std::string read(bytes_.substr(next_, size));
    next_ += size;
    return read;
  }

  void time(TimeNs& time_ns) {
    int64_t since = 0;
    signed_number(since);
    last_ns_ = static_cast<int64_t>(static_cast<uint64_t>(last_ns_) + static_cast<uint64_t>(since));
    constexpr TimeNs kMaxNs = TimeNs{1} << 60U;
    expect(-kMaxNs <= last_ns_ && last_ns_ <= kMaxNs, "a time of decades");
    time_ns = last_ns_;
  }
  template <class Number>
  void number(Number& value) {
    const uint64_t read = number();
    expect(read <= std::numeric_limits<Number>::max(), "a number that is too large");
    value = static_cast<Number>(read);
  }
  void signed_number(int64_t& value) {
    const uint64_t bits = number();
    value = static_cast<int64_t>((bits >> 1U) ^ ((bits & 1U) != 0 ? ~uint64_t{0} : 0));
  }
  template <class Id>
  void string(Id& id) {
    number(id);
    expect(id < names_.strings.size(), "a name that nothing defines");
  }
  void layout(LayoutId& id) {
    number(id);
    expect(id < names_.layouts.size(), "a layout that nothing defines");
  }
  void expect(bool is_valid, const char* fault) const {
    if (!is_valid) throw std::runtime_error(fault);
  }
  void flag(bool& value) {
    const uint64_t read = number();
    expect(read <= 1, "a flag that is neither 0 nor 1");
    value = read == 1;
  }
  template <class Choice>
  void choice(Choice& value, Choice last) {
    const uint64_t read = number();
    expect(read <= static_cast<uint64_t>(last), "a value that its enumeration does not have");
    value = static_cast<Choice>(read);
  }
  void sizes(std::vector<int64_t>& sizes) {
    sizes.resize(count());
    for (int64_t& size : sizes) signed_number(size);
  }
  template <class Item>
  void all(std::vector<Item>& items) {
    items.resize(count());
    for (Item& item : items) visit_fields(item, *this);
  }

 private:
  /// Reads the count of items that take a byte or more each.
  size_t count() {
    const uint64_t read = number();
    expect(read <= bytes_.size() - next_, "more items than bytes");
    return static_cast<size_t>(read);
  }

  uint64_t number() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const uint64_t read = byte();
      if (shift == 63 && read > 1) break;
      value |= (read & 0x7fU) << shift;
      if ((read & 0x80U) == 0) return value;
    }
    throw std::runtime_error("a number of more than 64 bits");
  }

  uint8_t byte() {
    expect(!at_end(), "an end in the middle of an event");
    return static_cast<uint8_t>(bytes_[next_++]);
  }

  const std::string_view bytes_;
  const Recording& names_;
  size_t next_ = 0;
  TimeNs last_ns_ = 0;
};

[[noreturn]] void fail(const std::string& source, const std::string& rest) {
  throw std::invalid_argument("[recording] " + source + ": " + rest);
}

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

void check_header(std::string_view bytes, const std::string& source) {
  const auto version = detail::file_version(bytes);
  if (!version)
    fail(source, "expected a recording, got another file. Name what a Recorder has written.");
  if (*version != detail::kFileVersion) {
    fail(source, "expected version " + std::to_string(detail::kFileVersion) + ", got " +
                     std::to_string(*version) +
                     ". Read it with the remat that wrote it, or record again.");
  }
}

/// Adds the next record of `thread` to the recording.
void read_record(ByteReader& reader, uint32_t thread, Recording& recording) {
  const uint8_t kind = reader.kind();
  if (kind == detail::kStringKind) return recording.strings.push_back(reader.text());
  if (kind == detail::kind_of<RecordedLayout>())
    return recording.layouts.push_back(reader.event<RecordedLayout>());
  bool is_known = kind == detail::kind_of<ProcessEvent>();
  if (is_known) recording.process = reader.event<ProcessEvent>();
  for_each_list(recording, [&]<class Event>(std::vector<OnThread<Event>>& events) {
    if (kind != detail::kind_of<Event>()) return;
    events.push_back({reader.event<Event>(), thread});
    is_known = true;
  });
  reader.expect(is_known, "an event of an unknown kind");
}

/// Reads the block at the start of `bytes` and returns the block's size. Throws std::runtime_error
/// if the block is damaged.
size_t read_block(std::string_view bytes, Recording& recording) {
  const auto block = detail::first_block(bytes);
  if (!block) throw std::runtime_error("one that is cut off or changed");
  ByteReader reader(block->events, recording);
  while (!reader.at_end()) read_record(reader, block->thread, recording);
  return detail::kBlockHeaderBytes + block->events.size();
}

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
  check_header(bytes, source);
  Recording recording;
  recording.strings.emplace_back();
  recording.layouts.emplace_back();
  for (size_t at = detail::kFileHeaderBytes; at < bytes.size();) {
    try {
      at += read_block(bytes.substr(at), recording);
    } catch (const std::runtime_error& damage) {
      recording.damage =
          "at byte " + std::to_string(at) + ": expected a block of events, got " + damage.what();
      break;
    }
  }
  for_each_list(recording, [](auto& events) {
    std::stable_sort(events.begin(), events.end(),
                     [](const auto& a, const auto& b) { return time_of(a) < time_of(b); });
  });
  return recording;
}

}  // namespace remat
