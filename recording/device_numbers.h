// SPDX-License-Identifier: BSD-3-Clause

// Numbers for devices, for viewers that know no device names.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording.h>

namespace remat::detail {

/// "cuda:1" has number 1; "cpu" and other devices without an index get the first free number.
class DeviceNumbers {
 public:
  DeviceNumbers(const Recording& recording, const std::vector<MemoryBlock>& blocks);

  size_t of(StringId device) const { return numbers_.at(device); }
  /// The largest number plus one.
  size_t end() const { return end_; }

 private:
  void give(StringId device, size_t number);

  std::map<StringId, size_t> numbers_;
  size_t end_ = 0;
};

}  // namespace remat::detail
