// SPDX-License-Identifier: BSD-3-Clause

// The tapes of regions, to be read.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/replayer.h>
#include <remat/tape/tape.h>

namespace remat {

/// A tape that a region has recorded. Keeps the tape and what it holds alive.
class RegionTape {
 public:
  RegionTape(std::string region, std::shared_ptr<const Replayer> owner)
      : region_(std::move(region)), owner_(std::move(owner)) {}

  /// "region 'block3'"
  const std::string& region() const { return region_; }

  /// Records, values, slots; str() numbers the records as Cuts::positions wants them.
  const Tape& tape() const { return *owner_->tape(); }

  /// The op of each record: "aten::mm". With Cuts, to choose positions by.
  REMAT_API std::vector<std::string> ops() const;

 private:
  std::string region_;
  std::shared_ptr<const Replayer> owner_;
};

/// The tapes of this process's regions, oldest first: of regions that recorded one
/// (CheckpointOptions::replay), and whose forward has ended and backward has not. Any thread.
REMAT_API std::vector<RegionTape> region_tapes();

}  // namespace remat
