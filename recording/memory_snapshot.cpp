// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/memory_snapshot.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <remat/recording/memory_blocks.h>

#include "device_numbers.h"
#include "json_writer.h"
#include "pickle_writer.h"
#include "region_labels.h"

namespace remat {
namespace {

using detail::ValueWriter;

/// Why a block is alive. It determines the block's frames, and many blocks share it.
struct Reason {
  StringId op = 0;
  std::string region;  ///< As text, with the slot.
  StringId node = 0;
  StringId line = 0;
  BlockKind kind = BlockKind::kOutside;
  StringId call = 0;

  auto order() const { return std::tie(op, region, node, line, kind, call); }
  bool operator<(const Reason& other) const { return order() < other.order(); }
};

/// An allocation or a free of one block on one device.
struct Change {
  size_t event = 0;  ///< Index into Recording::memory.
  bool is_alloc = false;
  size_t block = 0;

  /// A free comes before the next allocation at the same address.
  auto order() const { return std::tie(event, is_alloc, block); }
  bool operator<(const Change& other) const { return order() < other.order(); }
};

class MemorySnapshot {
 public:
  MemorySnapshot(const Recording& recording, ValueWriter& out)
      : recording_(recording),
        out_(out),
        labels_(recording),
        blocks_(memory_blocks(recording)),
        devices_(recording, blocks_) {}

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
    out_.number_at("device", static_cast<int64_t>(devices_.of(block.device)));
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
    std::vector<std::vector<Change>> all(devices_.end());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      std::vector<Change>& changes = all[devices_.of(blocks_[i].device)];
      changes.push_back({blocks_[i].begin, true, i});
      if (blocks_[i].end != MemoryBlock::kNone) changes.push_back({blocks_[i].end, false, i});
    }
    for (std::vector<Change>& changes : all) std::sort(changes.begin(), changes.end());
    return all;
  }

  void write_trace(const std::vector<Change>& changes) {
    out_.begin_list();
    for (const Change& change : changes) {
      const int64_t time_us = time_us_of(recording_.memory[change.event].time_ns);
      const MemoryBlock& block = blocks_[change.block];
      // The viewer draws a block in the segment that exists at that time.
      if (change.is_alloc) {
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
    if (reason.op != 0) write_frame(recording_.text(reason.op), reason.region, 0);
    if (reason.node != 0) write_frame(recording_.text(reason.node), "backward", 0);
    if (reason.line != 0) write_line(recording_.text(reason.line));
    const std::string call =
        reason.call == 0 ? "memory" : "call '" + recording_.text(reason.call) + "'";
    write_frame(kind_name(reason.kind), call, 0);
    out_.end_list();
  }

  Reason reason_of(const MemoryBlock& block) const {
    Reason reason;
    if (block.op != MemoryBlock::kNone) reason.op = recording_.ops[block.op].name;
    if (block.node != MemoryBlock::kNone) reason.node = recording_.nodes[block.node].name;
    const uint64_t region = block.slot == MemoryBlock::kNoSlot ? block.region : block.slot_region;
    reason.region = region == 0 ? "no region" : labels_.of(region);
    if (block.slot != MemoryBlock::kNoSlot) reason.region += ", slot " + std::to_string(block.slot);
    reason.line = block.line;
    reason.kind = block.kind;
    reason.call = block.call;
    return reason;
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
  ValueWriter& out_;
  const detail::RegionLabels labels_;
  const std::vector<MemoryBlock> blocks_;
  const detail::DeviceNumbers devices_;
  std::map<Reason, uint32_t> reasons_;  // values are ids of lists of frames
};

}  // namespace

void write_memory_snapshot(const Recording& recording, SnapshotFormat format, std::ostream& out) {
  if (format == SnapshotFormat::kPickle) {
    detail::PickleWriter pickle(out);
    MemorySnapshot(recording, pickle).run();
  } else {
    detail::JsonWriter json(out);
    MemorySnapshot(recording, json).run();
  }
}

}  // namespace remat
