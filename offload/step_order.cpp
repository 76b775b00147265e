// SPDX-License-Identifier: BSD-3-Clause

#include "step_order.h"

#include <utility>

namespace remat::detail {

size_t StepOrder::put(int64_t bytes) {
  const size_t number = bytes_.size();
  matches_ = matches_ && number < learned_bytes_.size() && learned_bytes_[number] == bytes;
  bytes_.push_back(bytes);
  after_.push_back(kUnknown);
  return number;
}

void StepOrder::got(size_t number) {
  // The first time counts: with a graph that is kept each backward asks again.
  if (last_ != kUnknown && last_ != number && after_[last_] == kUnknown) after_[last_] = number;
  last_ = number;
}

std::optional<size_t> StepOrder::after(size_t number) const {
  if (is_as_learned() && learned_after_[number] != kUnknown) return learned_after_[number];
  if (number == 0) return std::nullopt;
  return number - 1;
}

void StepOrder::end_step() {
  learned_bytes_.swap(bytes_);
  learned_after_.swap(after_);
  bytes_.clear();
  after_.clear();
  last_ = kUnknown;
  matches_ = true;
}

void StepOrder::forget() {
  end_step();
  learned_bytes_.clear();
  learned_after_.clear();
}

}  // namespace remat::detail
