// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/memory_snapshot.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <remat/recording/memory_blocks.h>

#include "pickle_writer.h"
#include "region_labels.h"

namespace remat {
namespace {

using detail::PickleWriter;

// No machine has more devices, and a viewer has a list for each number.
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

/// Numbers for a viewer that knows no device names: 1 for "cuda:1"; "cpu" and other devices without
/// an index get the first free number.
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
/// allocation, and the block. A free comes before the next allocation at the same address.
using Change = std::tuple<size_t, bool, size_t>;

/// Why a block is alive: op, region with slot, node, line, kind and call. It determines the block's
/// frames, and many blocks share it.
using Reason = std::tuple<StringId, std::string, StringId, StringId, BlockKind, StringId>;

class MemorySnapshot {
 public:
  MemorySnapshot(const Recording& recording, PickleWriter& out)
      : recording_(recording),
        out_(out),
        labels_(recording),
        blocks_(memory_blocks(recording)),
        devices_(device_numbers(recording, blocks_)) {}

  void run() {
    out_.begin_dict();
    out_.key("segments");
    out_.begin_list();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].end == MemoryBlock::kNone) write_segment(i);
    }
    out_.end_list();
    out_.key("device_traces");
    out_.begin_list();
    for (const std::vector<Change>& changes : changes_by_device()) write_trace(changes);
    out_.end_list();
    out_.key("allocator_settings");
    out_.begin_dict();
    out_.end_dict();
    out_.end_dict();
    out_.finish();
  }

 private:
  void write_segment(size_t place) {
    const MemoryBlock& block = blocks_[place];
    out_.begin_dict();
    out_.number_at("device", static_cast<int64_t>(devices_.at(block.device)));
    out_.number_at("address", static_cast<int64_t>(block.address));
    for (const char* size : {"total_size", "allocated_size", "active_size", "requested_size"})
      out_.number_at(size, block.bytes);
    out_.number_at("stream", 0);
    out_.text_at("segment_type", "large");
    out_.key("segment_pool_id");
    out_.begin_list();
    out_.number(0);
    out_.number(0);
    out_.end_list();
    out_.key("is_expandable");
    out_.flag(false);
    write_frames(block);
    out_.key("blocks");
    out_.begin_list();
    write_block(block);
    out_.end_list();
    out_.end_dict();
  }

  void write_block(const MemoryBlock& block) {
    out_.begin_dict();
    out_.number_at("address", static_cast<int64_t>(block.address));
    out_.number_at("size", block.bytes);
    out_.number_at("requested_size", block.bytes);
    out_.text_at("state", "active_allocated");
    write_frames(block);
    out_.end_dict();
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

  void write_trace(const std::vector<Change>& changes) {
    out_.begin_list();
    for (const auto& [event, is_alloc, i] : changes) {
      const int64_t time_us = time_us_of(recording_.memory[event].time_ns);
      const MemoryBlock& block = blocks_[i];
      // The viewer draws a block in the segment that exists at that time.
      if (is_alloc) {
        write_entry("segment_alloc", time_us, block);
        write_entry("alloc", time_us, block);
      } else {
        write_entry("free_requested", time_us, block);
        write_entry("free_completed", time_us, block);
        write_entry("segment_free", time_us, block);
      }
    }
    out_.end_list();
  }

  int64_t time_us_of(TimeNs time_ns) const {
    return recording_.process.begin_unix_ns / 1000 + time_ns / 1000;
  }

  /// The frames of a free are also the block's: the viewer shows them for the block.
  void write_entry(std::string_view action, int64_t time_us, const MemoryBlock& block) {
    out_.begin_dict();
    out_.text_at("action", action);
    out_.number_at("addr", static_cast<int64_t>(block.address));
    out_.number_at("size", block.bytes);
    out_.number_at("stream", 0);
    out_.number_at("time_us", time_us);
    write_frames(block);
    out_.end_dict();
  }

  void write_frames(const MemoryBlock& block) {
    const Reason reason = reason_of(block);
    const auto id = static_cast<uint32_t>(reasons_.size());
    out_.key("frames");
    if (!out_.begin_shared_list(reasons_.try_emplace(reason, id).first->second)) return;
    const auto& [op, region, node, line, kind, call] = reason;
    if (op != 0) write_frame(recording_.text(op), region, 0);
    if (node != 0) write_frame(recording_.text(node), "backward", 0);
    if (line != 0) write_line(recording_.text(line));
    write_frame(kind_name(kind), call == 0 ? "memory" : "call '" + recording_.text(call) + "'", 0);
    out_.end_list();
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
  void write_line(std::string_view line) {
    const size_t space = line.rfind(' ');
    const std::string_view place = line.substr(0, space);
    const size_t colon = place.rfind(':');
    int64_t number = 0;
    if (colon != std::string_view::npos)
      std::from_chars(place.data() + colon + 1, place.data() + place.size(), number);
    write_frame(space == std::string_view::npos ? "" : line.substr(space + 1),
                place.substr(0, colon), number);
  }

  void write_frame(std::string_view name, std::string_view filename, int64_t line) {
    out_.begin_dict();
    out_.text_at("name", name);
    out_.text_at("filename", filename);
    out_.number_at("line", line);
    out_.end_dict();
  }

  const Recording& recording_;
  PickleWriter& out_;
  const detail::RegionLabels labels_;
  const std::vector<MemoryBlock> blocks_;
  const std::map<StringId, size_t> devices_;
  std::map<Reason, uint32_t> reasons_;  // values are ids of lists of frames
};

}  // namespace

void write_memory_snapshot(const Recording& recording, std::ostream& out) {
  PickleWriter pickle(out);
  MemorySnapshot(recording, pickle).run();
}

}  // namespace remat
