// SPDX-License-Identifier: BSD-3-Clause

// The simulation of Note [Simulated engine] in copy_timeline.h.
#include "copy_timeline.h"

#include <algorithm>
#include <utility>

namespace remat::detail {

namespace {

constexpr size_t kLookedAhead = 64;  // equal to the limit in offload/mover_in.cpp

double copy_us(const OffloadPlace& place, double gbps, int64_t bytes) {
  return place.latency_us + static_cast<double>(bytes) / (gbps * 1e3);
}

}  // namespace

CopyTimeline::CopyTimeline(const OffloadTerms& terms, const std::vector<int64_t>& bytes)
    : terms_(terms), bytes_(bytes) {}

CopyTimes CopyTimeline::run(const std::vector<CopyStep>& steps) {
  moved_.assign(bytes_.size(), {});
  links_.assign(terms_.places.size(), {});
  order_.clear();
  waiting_.clear();
  leaving_.clear();
  now_us_ = 0;
  leaving_bytes_ = away_bytes_ = coming_bytes_ = 0;
  out_ = {};
  for (const CopyStep& step : steps) {
    const bool is_ask = step.kind == CopyStep::Kind::kAsk;
    if (is_ask && (order_.empty() || order_.back() != step.value)) order_.push_back(step.value);
  }
  size_t next = 0;
  for (const CopyStep& step : steps) {
    switch (step.kind) {
      case CopyStep::Kind::kCompute:
        now_us_ += step.us;
        break;
      case CopyStep::Kind::kPut:
        put(step.value);
        break;
      case CopyStep::Kind::kAlone:
        moved_[step.value].is_alone = true;
        break;
      case CopyStep::Kind::kAsk:
        if (next == 0 || order_[next - 1] != step.value) ++next;
        ask(next - 1);
        break;
      case CopyStep::Kind::kDrop:
        --moved_[step.value].held;
        break;
    }
  }
  return out_;
}

void CopyTimeline::put(int32_t value) {
  settle();
  send_waiting();
  if (leaving_bytes_ > terms_.max_leaving_bytes) wait_for_leaving();
  moved_[value].where = Where::kWaiting;
  waiting_.push_back(value);
}

void CopyTimeline::send_waiting() {
  std::vector<int32_t> still;
  for (const int32_t value : std::exchange(waiting_, {})) {
    if (moved_[value].is_alone) {
      send(value);
    } else {
      still.push_back(value);
    }
  }
  waiting_ = std::move(still);
}

void CopyTimeline::send(int32_t value) {
  Moved& moved = moved_[value];
  const int64_t bytes = bytes_[value];
  moved.where = Where::kStays;
  if (bytes > terms_.max_bytes - away_bytes_) return;
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    const OffloadPlace& place = terms_.places[i];
    if (bytes > place.max_bytes - link.bytes) continue;
    link.bytes += bytes;
    const double us = copy_us(place, place.out_gbps, bytes);
    link.out_free_us = std::max(link.out_free_us, now_us_) + us;
    out_.copied_us += us;
    moved.where = Where::kLeaving;
    moved.place = i;
    moved.ends_us = link.out_free_us;
    leaving_.push_back(value);
    leaving_bytes_ += bytes;
    away_bytes_ += bytes;
    out_.away_bytes = std::max(out_.away_bytes, away_bytes_);
    return;
  }
}

void CopyTimeline::wait_for_leaving() {
  while (true) {
    settle();
    if (leaving_bytes_ <= terms_.max_leaving_bytes) return;
    const auto first = std::find_if(leaving_.begin(), leaving_.end(),
                                    [&](int32_t value) { return !moved_[value].has_left; });
    wait_until(moved_[*first].ends_us);
  }
}

void CopyTimeline::settle() {
  for (const int32_t value : std::exchange(leaving_, {})) {
    Moved& moved = moved_[value];
    if (!moved.has_left && moved.ends_us <= now_us_) {
      moved.has_left = true;
      leaving_bytes_ -= bytes_[value];
      out_.left_bytes += bytes_[value];
    }
    if (moved.has_left && !moved.is_next) {
      moved.where = Where::kAway;
    } else {
      leaving_.push_back(value);
    }
  }
}

void CopyTimeline::ask(size_t asked) {
  settle();
  const int32_t value = order_[asked];
  Moved& moved = moved_[value];
  if (moved.where == Where::kComing) {
    moved.where = Where::kAway;
    coming_bytes_ -= bytes_[value];
  } else if (moved.where == Where::kAway && moved.held == 0) {
    if (coming_bytes_ + bytes_[value] > terms_.prefetch_bytes) forget_coming();
    fetch(value);
  } else if (moved.is_next) {
    moved.is_next = false;
    coming_bytes_ -= bytes_[value];
    if (moved.has_left) hand_over(value);
  }
  ++moved.held;
  prefetch(asked);
  if (moved.where == Where::kAway) wait_until(moved.ends_us);
}

void CopyTimeline::hand_over(int32_t value) {
  moved_[value].where = Where::kAway;
  leaving_.erase(std::find(leaving_.begin(), leaving_.end(), value));
}

void CopyTimeline::fetch(int32_t value) {
  Moved& moved = moved_[value];
  const OffloadPlace& place = terms_.places[moved.place];
  double& free_us = links_[moved.place].in_free_us;
  const double us = copy_us(place, place.in_gbps, bytes_[value]);
  free_us = std::max(free_us, now_us_) + us;
  moved.ends_us = free_us;
  out_.copied_us += us;
  out_.fetched_bytes += bytes_[value];
}

void CopyTimeline::forget_coming() {
  for (size_t value = 0; value < moved_.size(); ++value) {
    Moved& moved = moved_[value];
    if (moved.where == Where::kComing) moved.where = Where::kAway;
    moved.is_next = false;
  }
  coming_bytes_ = 0;
}

void CopyTimeline::prefetch(size_t asked) {
  const size_t end = std::min(order_.size(), asked + 1 + kLookedAhead);
  for (size_t next = asked + 1; next < end; ++next) {
    const int32_t value = order_[next];
    Moved& moved = moved_[value];
    const bool is_leaving = moved.where == Where::kLeaving && !moved.is_next;
    const bool may_come = is_leaving || (moved.where == Where::kAway && moved.held == 0);
    if (!may_come) continue;
    if (coming_bytes_ + bytes_[value] > terms_.prefetch_bytes) return;
    coming_bytes_ += bytes_[value];
    if (is_leaving) {
      moved.is_next = true;
      continue;
    }
    fetch(value);
    moved.where = Where::kComing;
  }
}

void CopyTimeline::wait_until(double us) {
  if (us <= now_us_) return;
  out_.waited_us += us - now_us_;
  now_us_ = us;
}

}  // namespace remat::detail
