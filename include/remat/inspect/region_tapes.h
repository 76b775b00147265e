// SPDX-License-Identifier: BSD-3-Clause

// The tapes of regions, to be read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

class Replayer;
class Tape;

/// A tape that a region has recorded. Keeps the tape and what it holds alive.
class REMAT_API RegionTape {
 public:
  RegionTape(std::string region, std::shared_ptr<const Replayer> owner)
      : region_(std::move(region)), owner_(std::move(owner)) {}

  /// "region 'block3'"
  const std::string& region() const { return region_; }

  /// The op of each record: "aten::mm". With Cuts, to choose positions by.
  std::vector<std::string> ops() const;

  /// How many records it has.
  size_t size() const;

  /// Of the tape itself, without the tensors that it holds.
  size_t size_bytes() const;

  /// One line per record, with the number that Cuts::positions wants:
  /// "12: %3 = aten::mul.Tensor(%1, 2)".
  std::string str() const;

  /// The tape itself, in remat's own terms.
  const Tape& tape() const;

 private:
  std::string region_;
  std::shared_ptr<const Replayer> owner_;
};

/// The tapes of this process's regions, oldest first: of regions that recorded one
/// (CheckpointOptions::replay), and whose forward has ended and backward has not. Any thread.
REMAT_API std::vector<RegionTape> region_tapes();

}  // namespace remat
