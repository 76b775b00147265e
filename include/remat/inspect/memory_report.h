// SPDX-License-Identifier: BSD-3-Clause

// A report on the memory that regions hold between forward and backward, with reasons.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

/// A tensor that a region holds.
struct MemoryRow {
  std::string name;    ///< "argument 0", "attention: saved.1 (result 0)", "attention: result"
  std::string tensor;  ///< "float32 [8, 128] on cpu"
  std::string why;     ///< Reason why it is held
  /// Bytes of its storage; 0 if another row counts that storage, or if hooks hold the tensor.
  size_t bytes = 0;
  bool implicit = false;  ///< True for a result that is kept only because a bare op reads it
};

/// All memory that one region holds.
struct RegionMemory {
  std::string region;         ///< "region 'block3'"
  size_t slots = 0;           ///< Number of tensors that backward needs and a replay will recompute
  size_t bytes = 0;           ///< Sum of the rows
  size_t implicit_bytes = 0;  ///< Sum of the implicit rows
  size_t tape_bytes = 0;      ///< Host memory for the records of its tape; not part of any sum
  std::vector<MemoryRow> rows;
};

/// A rule or call that holds memory, and the memory that another policy would free.
struct MemoryChange {
  std::string reason;  ///< "rule op 'aten::mm' -> SAVE (code)", "SAVE of call 'layer.0-11/mlp'"
  std::string change;  ///< "RECOMPUTE instead of SAVE"
  std::string device;  ///< "cpu", "cuda:0"
  /// Estimate of the bytes that this change alone would free. It counts the storages that nothing
  /// else in a region holds. The real number may be smaller, because values that would have to be
  /// kept instead, and storages that the program itself holds, are unknown.
  size_t bytes = 0;
  size_t bytes_so_far = 0;  ///< Estimate for this change and all changes of the device before it
  size_t tensors = 0;       ///< Number of tensors that the rule or call holds
  size_t regions = 0;       ///< Number of regions that hold these tensors
};

struct MemoryReport {
  std::vector<RegionMemory> regions;  ///< Oldest first
  size_t bytes = 0;
  size_t implicit_bytes = 0;
  /// Rules of the regions' policies that matched nothing, each once. Rules of presets are left out.
  std::vector<std::string> unmatched_rules{};

  /// Up to 16 for each device. Each is the change that frees most in addition to those before it.
  std::vector<MemoryChange> changes{};

  /// The report as text: one line for the total, one per region, tensor, unmatched rule and change;
  /// bytes have thousands separators.
  REMAT_API std::string str() const;

  /// Text with the changes for `device` ("cuda:0"; empty: all devices). Marks a change that frees
  /// `wanted` bytes alone, and the first that does so together with those before it; 0 marks none.
  REMAT_API std::string changes_str(const std::string& device = "", size_t wanted = 0) const;
};

/// Reports what the regions of this process hold now: tensor arguments, copies of outside memory
/// that the regions write, and what SAVE calls keep. Each storage is counted once, for the oldest
/// region that holds it. Not counted: leaves that require grad and views of them, and tensors that
/// user hooks, an OffloadStore or an outer region hold instead. Regions whose forward runs on
/// another thread are left out. Any thread. Takes no lock while it looks, so a region that another
/// thread's backward frees meanwhile may or may not be included.
REMAT_API MemoryReport memory_report();

}  // namespace remat
