// SPDX-License-Identifier: BSD-3-Clause

#include <algorithm>

#include "moved_storage.h"

namespace remat::detail {
namespace {

constexpr size_t kMaxAsks = size_t{1} << 18;
constexpr size_t kMaxNumbers = size_t{1} << 16;

}  // namespace

void StepOrder::put(MovedStorage& moved) {
  if (bytes_.size() >= kMaxNumbers) {
    end_step();
    learned_bytes_.clear();
    learned_asks_.clear();
  }
  const size_t number = bytes_.size();
  matches_ = matches_ && number < learned_bytes_.size() && learned_bytes_[number] == moved.bytes;
  bytes_.push_back(moved.bytes);
  stored_.push_back(&moved);
  moved.sequence = next_sequence_++;
  ++live_;
}

bool StepOrder::got(const MovedStorage& moved) {
  if (moved.sequence < first_sequence_) return false;
  const size_t number = moved.sequence - first_sequence_;
  if (last_ == number) return true;
  last_ = number;
  if (asks_.size() < kMaxAsks) asks_.push_back(number);
  if (is_as_learned()) find_place(number);
  return true;
}

// Sets place_ right after `number`. place_ jumps forward if this step leaves out something that the
// last step asked for, and back if this step starts over, as the backward of a retained graph does.
void StepOrder::find_place(size_t number) {
  const auto begin = learned_asks_.begin();
  const auto place = begin + static_cast<std::ptrdiff_t>(place_);
  auto found = std::find(place, learned_asks_.end(), number);
  if (found == learned_asks_.end()) found = std::find(begin, place, number);
  if (found != learned_asks_.end() && *found == number)
    place_ = static_cast<size_t>(found - begin) + 1;
}

std::optional<MovedStorage*> StepOrder::next(size_t skipped) const {
  if (is_as_learned()) {
    if (place_ + skipped >= learned_asks_.size()) return std::nullopt;
    return stored_[learned_asks_[place_ + skipped]];
  }
  if (last_ == kUnknown || last_ <= skipped) return std::nullopt;
  return stored_[last_ - 1 - skipped];
}

void StepOrder::drop(const MovedStorage& moved) {
  if (moved.sequence >= first_sequence_) stored_[moved.sequence - first_sequence_] = nullptr;
  if (--live_ == 0) end_step();
}

void StepOrder::end_step() {
  learned_bytes_.swap(bytes_);
  learned_asks_.swap(asks_);
  bytes_.clear();
  asks_.clear();
  stored_.clear();
  first_sequence_ = next_sequence_;
  last_ = kUnknown;
  place_ = 0;
  matches_ = true;
}

}  // namespace remat::detail
