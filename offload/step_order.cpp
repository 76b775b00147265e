// SPDX-License-Identifier: BSD-3-Clause

#include "step_order.h"

#include <algorithm>

namespace remat::detail {

size_t StepOrder::put(int64_t bytes) {
  const size_t number = bytes_.size();
  matches_ = matches_ && number < learned_bytes_.size() && learned_bytes_[number] == bytes;
  bytes_.push_back(bytes);
  return number;
}

void StepOrder::got(size_t number) {
  if (last_ == number) return;
  last_ = number;
  if (asks_.size() < kMostAsks) asks_.push_back(number);
  if (is_as_learned()) find_place(number);
}

// If this step asks for less than the last one, the place moves forward; if it starts over, as
// backward of a retained graph does, the place moves back.
void StepOrder::find_place(size_t number) {
  const auto begin = learned_asks_.begin();
  const auto place = begin + static_cast<std::ptrdiff_t>(place_);
  auto found = std::find(place, learned_asks_.end(), number);
  if (found == learned_asks_.end()) found = std::find(begin, place, number);
  if (found != learned_asks_.end() && *found == number)
    place_ = static_cast<size_t>(found - begin) + 1;
}

std::optional<size_t> StepOrder::next(size_t skipped) const {
  if (is_as_learned()) {
    if (place_ + skipped >= learned_asks_.size()) return std::nullopt;
    return learned_asks_[place_ + skipped];
  }
  if (last_ == kUnknown || last_ <= skipped) return std::nullopt;
  return last_ - 1 - skipped;
}

void StepOrder::end_step() {
  learned_bytes_.swap(bytes_);
  learned_asks_.swap(asks_);
  bytes_.clear();
  asks_.clear();
  last_ = kUnknown;
  place_ = 0;
  matches_ = true;
}

void StepOrder::forget() {
  end_step();
  learned_bytes_.clear();
  learned_asks_.clear();
}

}  // namespace remat::detail
