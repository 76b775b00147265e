// SPDX-License-Identifier: BSD-3-Clause

// Finds the live regions that have tapes.
#include <remat/engine/region.h>
#include <remat/engine/replayer.h>
#include <remat/inspect/region_tapes.h>
#include <remat/tape/tape.h>

namespace remat {

const Tape& RegionTape::tape() const {
  return *owner_->tape();
}

std::vector<std::string> RegionTape::ops() const {
  std::vector<std::string> ops;
  ops.reserve(tape().records().size());
  for (const TapeRecord& record : tape().records()) ops.push_back(record.op->name());
  return ops;
}

size_t RegionTape::size() const {
  return tape().records().size();
}

size_t RegionTape::size_bytes() const {
  return tape().size_bytes();
}

std::string RegionTape::str() const {
  return tape().str();
}

std::vector<RegionTape> region_tapes() {
  std::vector<RegionTape> tapes;
  for (const std::shared_ptr<const Region>& region : live_regions()) {
    if (!region->closed()) continue;
    if (auto replayer = region->replayer(); replayer && replayer->tape())
      tapes.emplace_back(region->label(), std::move(replayer));
  }
  return tapes;
}

}  // namespace remat
