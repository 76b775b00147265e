// SPDX-License-Identifier: BSD-3-Clause

#include "device_numbers.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

namespace remat::detail {
namespace {

// No machine has more, and a viewer has a list for each number.
constexpr size_t kMostDevices = 1024;

std::optional<size_t> number_in(std::string_view device) {
  const size_t colon = device.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view digits = device.substr(colon + 1);
  size_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  return is_number && number < kMostDevices ? std::optional(number) : std::nullopt;
}

}  // namespace

DeviceNumbers::DeviceNumbers(const Recording& recording, const std::vector<MemoryBlock>& blocks) {
  std::set<StringId> devices;
  for (const MemoryBlock& block : blocks) devices.insert(block.device);
  std::set<size_t> taken;
  for (const StringId device : devices) {
    const std::optional<size_t> number = number_in(recording.text(device));
    if (number && taken.insert(*number).second) give(device, *number);
  }
  size_t next = 0;
  for (const StringId device : devices) {
    if (numbers_.count(device) > 0) continue;
    while (taken.count(next) > 0) ++next;
    give(device, next++);
  }
}

void DeviceNumbers::give(StringId device, size_t number) {
  numbers_.emplace(device, number);
  end_ = std::max(end_, number + 1);
}

}  // namespace remat::detail
