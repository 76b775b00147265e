// SPDX-License-Identifier: BSD-3-Clause

// Read access to the tapes of regions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

class Replayer;
class Tape;

/// A tape that a region has recorded. Keeps alive the tape and all that the tape holds.
class REMAT_API RegionTape {
 public:
  RegionTape(std::string region, std::shared_ptr<const Replayer> owner)
      : region_(std::move(region)), owner_(std::move(owner)) {}

  /// Label of the region: "region 'block3'".
  const std::string& region() const { return region_; }

  /// The op of each record, such as "aten::mm", for choosing positions of Cuts.
  std::vector<std::string> ops() const;

  /// Number of records.
  size_t size() const;

  /// Bytes of the tape itself, without the tensors that it holds.
  size_t size_bytes() const;

  /// Text with one line per record, numbered as in Cuts::positions: "12: %3 = aten::mul.Tensor(%1,
  /// 2)".
  std::string str() const;

  /// The underlying tape, an internal type.
  const Tape& tape() const;

 private:
  std::string region_;
  std::shared_ptr<const Replayer> owner_;
};

/// The tapes of those regions of this process that recorded a tape (CheckpointOptions::replay) and
/// are between forward and backward, oldest region first. Any thread.
REMAT_API std::vector<RegionTape> region_tapes();

}  // namespace remat
