// SPDX-License-Identifier: BSD-3-Clause

// What regions hold between forward and backward, and why.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

/// A tensor that a region holds.
struct MemoryRow {
  std::string name;    ///< "argument 0", "attention: saved.1 (result 0)", "attention: result"
  std::string tensor;  ///< "float32 [8, 128] on cpu"
  std::string why;     ///< What it is held for.
  size_t bytes = 0;    ///< Of its storage; 0 if another row counts that storage, or hooks hold it.
  bool implicit = false;  ///< A result that is kept only because a bare op reads it.
};

/// All that one region holds.
struct RegionMemory {
  std::string region;         ///< "region 'block3'"
  size_t slots = 0;           ///< Tensors that backward wants and that a replay will make.
  size_t bytes = 0;           ///< The sum of the rows.
  size_t implicit_bytes = 0;  ///< That of the implicit rows.
  size_t tape_bytes = 0;      ///< Of host memory, for the records of its tape; in no sum.
  std::vector<MemoryRow> rows;
};

/// A choice that holds memory, and what another one would free.
struct MemoryChange {
  std::string reason;  ///< "rule op 'aten::mm' -> SAVE (code)", "SAVE of call 'layer.0-11/mlp'"
  std::string change;  ///< "RECOMPUTE instead of SAVE"
  std::string device;  ///< "cpu", "cuda:0"
  /// What it would free, by estimate: storages that nothing else in a region holds. What would have
  /// to be kept in their place is not known, nor what the program itself holds: it may be less.
  size_t bytes = 0;
  size_t bytes_so_far = 0;  ///< The same together with the changes before it, of the same device.
  size_t tensors = 0;       ///< That it is about.
  size_t regions = 0;
};

struct MemoryReport {
  std::vector<RegionMemory> regions;  ///< Oldest first.
  size_t bytes = 0;
  size_t implicit_bytes = 0;
  std::vector<std::string> unmatched_rules{};  ///< Of their policies, each once; but for presets.

  /// By devices; each the most valuable one after those before it, some 16 of a device.
  std::vector<MemoryChange> changes{};

  /// As text: a line for the whole, one per region, one per tensor, one per unmatched rule, one per
  /// change; bytes with thousands separators.
  REMAT_API std::string str() const;

  /// What would free `wanted` bytes of `device` ("cuda:0"), as text: its changes, and which of them
  /// are enough. 0 asks for nothing in particular; an empty `device` stands for all.
  REMAT_API std::string changes_str(const std::string& device = "", size_t wanted = 0) const;
};

/// What the regions of this process hold now: their tensor arguments, copies from before writes,
/// what their SAVE calls keep. Each storage is billed once, to the oldest region that has it. Not
/// billed: leaves that require grad and views of them, and what user hooks, an OffloadStore or an
/// outer region hold instead. Regions whose forward runs on another thread are left out. Any
/// thread; takes no lock while it looks, so regions that another thread's backward frees meanwhile
/// may or may not be in it.
REMAT_API MemoryReport memory_report();

}  // namespace remat
