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

struct MemoryReport {
  std::vector<RegionMemory> regions;  ///< Oldest first.
  size_t bytes = 0;
  size_t implicit_bytes = 0;
  std::vector<std::string> unmatched_rules{};  ///< Of their policies, each once; but for presets.

  /// As text: a line for the whole, one per region, one per tensor, one per unmatched rule; bytes
  /// with thousands separators.
  REMAT_API std::string str() const;
};

/// What the regions of this process hold now: their tensor arguments, copies from before writes,
/// what their SAVE calls keep. Each storage is billed once, to the oldest region that has it. Not
/// billed: leaves that require grad and views of them, and what user hooks, an OffloadStore or an
/// outer region hold instead. Regions whose forward runs on another thread are left out. Any
/// thread; takes no lock while it looks, so regions that another thread's backward frees meanwhile
/// may or may not be in it.
REMAT_API MemoryReport memory_report();

}  // namespace remat
