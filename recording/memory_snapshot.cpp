// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/memory_snapshot.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/region_labels.h>

namespace remat {
namespace {

using Json = nlohmann::ordered_json;

/// Writes the part of the pickle format, protocol 2, that a snapshot needs. The only C++ library
/// that writes pickles is LibTorch, which this module does without. Only opcodes that PyTorch's
/// viewer knows are used; items are appended to lists one by one, since the viewer cannot append
/// many at once. https://docs.python.org/3/library/pickle.html, and its opcodes in
/// Lib/pickletools.py
class PickleWriter {
 public:
  explicit PickleWriter(std::ostream& out) : out_(out) { out_ << "\x80\x02"; }

  /// Pushes a value on the reader's stack. Repeated texts become references.
  void push(const Json& value) {
    switch (value.type()) {
      case Json::value_t::object:
        out_ << '}';
        for (const auto& [key, item] : value.items()) {
          push_text(key);
          push(item);
          set_item();
        }
        return;
      case Json::value_t::array:
        out_ << ']';
        for (const Json& item : value) {
          push(item);
          append();
        }
        return;
      case Json::value_t::string:
        return push_text(value.get_ref<const std::string&>());
      case Json::value_t::boolean:
        out_ << (value.get<bool>() ? '\x88' : '\x89');
        return;
      default:
        return push_number(value.get<int64_t>());
    }
  }

  /// Adds the value that was pushed last to the list that was pushed before it.
  void append() { out_ << 'a'; }
  /// Sets an item of the dict that was pushed before the last two values: the key and the value.
  void set_item() { out_ << 's'; }

  /// Returns a number by which recall() pushes the last value again.
  uint32_t remember() {
    out_ << 'r';
    little_endian(next_memo_, 4);
    return next_memo_++;
  }
  void recall(uint32_t memo) {
    out_ << 'j';
    little_endian(memo, 4);
  }

  /// Ends the pickle. Call it when one value is left on the reader's stack.
  void finish() { out_ << '.'; }

 private:
  void push_number(int64_t value) {
    const bool is_small = value == static_cast<int32_t>(value);
    out_ << (is_small ? "J" : "\x8a\x08");
    little_endian(static_cast<uint64_t>(value), is_small ? 4 : 8);
  }

  void push_text(const std::string& text) {
    if (const auto known = texts_.find(text); known != texts_.end()) return recall(known->second);
    // Names of threads and files may be any bytes, so U+FFFD replaces each invalid byte of UTF-8.
    const std::string valid =
        Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
    out_ << 'X';
    little_endian(valid.size(), 4);
    out_ << valid;
    texts_.emplace(text, remember());
  }

  void little_endian(uint64_t value, int bytes) {
    for (int byte = 0; byte < bytes; ++byte) out_ << static_cast<char>(value >> (8 * byte));
  }

  std::ostream& out_;
  std::unordered_map<std::string, uint32_t> texts_;
  uint32_t next_memo_ = 0;
};

// Limit on device numbers, because a damaged recording may name any number, and the snapshot has a
// list for each number up to the largest.
constexpr size_t kDeviceLimit = 1024;

/// The number in "cuda:1"; nullopt for "cpu".
std::optional<size_t> number_in(std::string_view device) {
  const size_t colon = device.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view digits = device.substr(colon + 1);
  size_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  return is_number && number < kDeviceLimit ? std::optional(number) : std::nullopt;
}

/// Numbers of devices, for a viewer that knows no device names: 1 for "cuda:1"; "cpu" and other
/// devices without an index get the lowest number not in use.
std::map<StringId, size_t> device_numbers(const Recording& recording,
                                          const std::vector<MemoryBlock>& blocks) {
  std::set<StringId> devices;
  for (const MemoryBlock& block : blocks) devices.insert(block.device);
  std::map<StringId, size_t> numbers;
  std::set<size_t> taken;
  for (const StringId device : devices) {
    const std::optional<size_t> number = number_in(recording.text(device));
    if (number && taken.insert(*number).second) numbers.emplace(device, *number);
  }
  size_t next = 0;
  for (const StringId device : devices) {
    if (numbers.count(device) > 0) continue;
    while (taken.count(next) > 0) ++next;
    numbers.emplace(device, next++);
  }
  return numbers;
}

/// An event of one block on one device: its index in Recording::memory, whether it is an
/// allocation, and the block. An allocation at an address that is in use counts as a free, too, and
/// the free is the smaller of these two changes.
using Change = std::tuple<size_t, bool, size_t>;

/// Why a block is alive: op, region with slot, node, line, kind and call. Blocks with equal
/// reasons, of which there are many, have equal frames, which are written once.
using Reason = std::tuple<StringId, std::string, StringId, StringId, BlockKind, StringId>;

class MemorySnapshot {
 public:
  MemorySnapshot(const Recording& recording, std::ostream& out)
      : recording_(recording),
        out_(out),
        labels_(recording),
        blocks_(memory_blocks(recording)),
        devices_(device_numbers(recording, blocks_)) {}

  void run() {
    out_.push(Json::object());
    out_.push("segments");
    out_.push(Json::array());
    for (const MemoryBlock& block : blocks_) {
      if (block.end == MemoryBlock::kNone) append_segment(block);
    }
    out_.set_item();
    out_.push("device_traces");
    out_.push(Json::array());
    for (const std::vector<Change>& changes : changes_by_device()) append_trace(changes);
    out_.set_item();
    out_.finish();
  }

 private:
  void append_segment(const MemoryBlock& block) {
    out_.push({{"device", devices_.at(block.device)},
               {"address", address_of(block)},
               {"total_size", block.bytes},
               {"allocated_size", block.bytes},
               {"active_size", block.bytes},
               {"requested_size", block.bytes},
               {"stream", 0},
               {"segment_type", "large"},
               {"segment_pool_id", Json::array({0, 0})},
               {"is_expandable", false}});
    set_frames(block);
    out_.push("blocks");
    out_.push(Json::array());
    out_.push({{"address", address_of(block)},
               {"size", block.bytes},
               {"requested_size", block.bytes},
               {"state", "active_allocated"}});
    set_frames(block);
    out_.append();
    out_.set_item();
    out_.append();
  }

  int64_t address_of(const MemoryBlock& block) const {
    return static_cast<int64_t>(recording_.memory[block.begin].address);
  }

  std::vector<std::vector<Change>> changes_by_device() const {
    std::vector<std::vector<Change>> all;
    for (const auto& [device, number] : devices_) all.resize(std::max(all.size(), number + 1));
    for (size_t i = 0; i < blocks_.size(); ++i) {
      std::vector<Change>& changes = all[devices_.at(blocks_[i].device)];
      changes.push_back({blocks_[i].begin, true, i});
      if (blocks_[i].end != MemoryBlock::kNone) changes.push_back({blocks_[i].end, false, i});
    }
    for (std::vector<Change>& changes : all) std::sort(changes.begin(), changes.end());
    return all;
  }

  void append_trace(const std::vector<Change>& changes) {
    out_.push(Json::array());
    for (const auto& [event, is_alloc, i] : changes) {
      // The viewer draws blocks only inside segments, so each block gets a segment of its own.
      const std::vector<const char*> actions =
          is_alloc ? std::vector{"segment_alloc", "alloc"}
                   : std::vector{"free_requested", "free_completed", "segment_free"};
      for (const char* const action : actions)
        append_entry(action, recording_.memory[event].time_ns, blocks_[i]);
    }
    out_.append();
  }

  /// Frees have the frames of their block, too, since the viewer shows a free's frames for a block.
  void append_entry(const char* action, TimeNs time_ns, const MemoryBlock& block) {
    out_.push({{"action", action},
               {"addr", address_of(block)},
               {"size", block.bytes},
               {"stream", 0},
               {"time_us", recording_.process.begin_unix_ns / 1000 + time_ns / 1000}});
    set_frames(block);
    out_.append();
  }

  void set_frames(const MemoryBlock& block) {
    out_.push("frames");
    const auto [known, is_new] = frames_.try_emplace(reason_of(block));
    if (is_new) {
      out_.push(frames_of(known->first));
      known->second = out_.remember();
    } else {
      out_.recall(known->second);
    }
    out_.set_item();
  }

  Json frames_of(const Reason& reason) const {
    const auto& [op, region, node, line, kind, call] = reason;
    Json frames = Json::array();
    if (op != 0) frames.push_back(frame(recording_.text(op), region, 0));
    if (node != 0) frames.push_back(frame(recording_.text(node), "backward", 0));
    if (line != 0) frames.push_back(frame_of_line(recording_.text(line)));
    frames.push_back(
        frame(kind_name(kind), call == 0 ? "memory" : "call '" + recording_.text(call) + "'", 0));
    return frames;
  }

  Reason reason_of(const MemoryBlock& block) const {
    const StringId op =
        block.op == MemoryBlock::kNone ? StringId{0} : recording_.ops[block.op].name;
    const StringId node =
        block.node == MemoryBlock::kNone ? StringId{0} : recording_.nodes[block.node].name;
    const uint64_t id = block.slot == MemoryBlock::kNoSlot ? block.region : block.slot_region;
    std::string region = id == 0 ? "no region" : labels_.of(id);
    if (block.slot != MemoryBlock::kNoSlot) region += ", slot " + std::to_string(block.slot);
    return {op, std::move(region), node, block.line, block.kind, block.call};
  }

  /// Parses a line such as "model.py:12 forward".
  static Json frame_of_line(const std::string& line) {
    const size_t space = line.rfind(' ');
    const std::string place = line.substr(0, space);
    const size_t colon = place.rfind(':');
    int64_t number = 0;
    if (colon != std::string::npos)
      std::from_chars(place.data() + colon + 1, place.data() + place.size(), number);
    return frame(space == std::string::npos ? "" : line.substr(space + 1), place.substr(0, colon),
                 number);
  }

  static Json frame(const std::string& name, const std::string& filename, int64_t line) {
    return {{"name", name}, {"filename", filename}, {"line", line}};
  }

  const Recording& recording_;
  PickleWriter out_;
  const detail::RegionLabels labels_;
  const std::vector<MemoryBlock> blocks_;
  const std::map<StringId, size_t> devices_;
  std::map<Reason, uint32_t> frames_;  // by reason: argument of out_.recall() for the frames
};

}  // namespace

void write_memory_snapshot(const Recording& recording, std::ostream& out) {
  MemorySnapshot(recording, out).run();
}

}  // namespace remat
