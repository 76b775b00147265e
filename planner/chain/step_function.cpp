// SPDX-License-Identifier: BSD-3-Clause

// Minima of falling step functions, by merging their breakpoints.
#include <remat/planner/step_function.h>

#include <algorithm>
#include <limits>

namespace remat::detail {

const Step* step_at(const StepFunction& steps, int64_t bytes) {
  const auto after =
      std::upper_bound(steps.begin(), steps.end(), bytes,
                       [](int64_t value, const Step& step) { return value < step.bytes; });
  return after == steps.begin() ? nullptr : &*(after - 1);
}

int64_t StepMinimum::useless_from(Ticks least_time) const {
  const auto at = std::partition_point(best_.begin(), best_.end(),
                                       [&](const Step& step) { return step.time > least_time; });
  return at == best_.end() ? std::numeric_limits<int64_t>::max() : at->bytes;
}

namespace {

/// The first index from `from` on at which `holds` is false. The search begins nearby, where most
/// answers are.
template <typename Holds>
size_t end_of_run(const StepFunction& steps, size_t from, const Holds& holds) {
  size_t width = 1;
  while (from + width <= steps.size() && holds(steps[from + width - 1])) width *= 2;
  const auto begin = steps.begin() + static_cast<std::ptrdiff_t>(from + width / 2);
  const auto end =
      steps.begin() + static_cast<std::ptrdiff_t>(std::min(from + width, steps.size()));
  return static_cast<size_t>(std::partition_point(begin, end, holds) - steps.begin());
}

}  // namespace

void StepMinimum::lower(Step step) {
  candidate_.assign(1, step);
  merge(0);
}

void StepMinimum::lower(const StepFunction& rest, int64_t shift, Ticks time, int64_t least_bytes) {
  if (rest.empty()) return;
  const int64_t stop = useless_from(rest.back().time + time);
  const auto bytes_at = [&](size_t k) { return std::max(least_bytes, rest[k].bytes + shift); };
  const Step* at = step_at(rest, least_bytes - shift);
  size_t k = at == nullptr ? 0 : static_cast<size_t>(at - rest.data());
  // Skips steps that improve nothing: they take no less time than the best step at their bytes.
  size_t i = 0;
  for (; k < rest.size() && bytes_at(k) < stop;) {
    i = end_of_run(best_, i, [&](const Step& step) { return step.bytes <= bytes_at(k); });
    if (i == 0 || best_[i - 1].time > rest[k].time + time) break;
    const Ticks enough = best_[i - 1].time - time;
    k = end_of_run(rest, k, [&](const Step& step) { return step.time >= enough; });
  }
  candidate_.clear();
  for (; k < rest.size() && bytes_at(k) < stop; ++k)
    candidate_.push_back({bytes_at(k), rest[k].time + time});
  merge(i);
}

void StepMinimum::lower(const StepFunction& first, int64_t shift, const StepFunction& second,
                        Ticks time, int64_t least_bytes) {
  if (first.empty() || second.empty()) return;
  const int64_t stop = useless_from(first.back().time + second.back().time + time);
  int64_t bytes = std::max({least_bytes, first[0].bytes + shift, second[0].bytes});
  if (bytes >= stop) return;
  const auto index_at = [](const StepFunction& steps, int64_t limit) {
    return static_cast<size_t>(step_at(steps, limit) - steps.data());
  };
  size_t i = index_at(first, bytes - shift);
  size_t j = index_at(second, bytes);
  size_t unchanged = end_of_run(best_, 0, [&](const Step& step) { return step.bytes <= bytes; });
  candidate_.clear();
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  while (bytes < stop) {
    const Ticks sum = first[i].time + second[j].time + time;
    if (candidate_.empty()) {
      while (unchanged < best_.size() && best_[unchanged].bytes <= bytes) ++unchanged;
      if (unchanged == 0 || best_[unchanged - 1].time > sum) candidate_.push_back({bytes, sum});
    } else {
      candidate_.push_back({bytes, sum});
    }
    const int64_t next_first = i + 1 < first.size() ? first[i + 1].bytes + shift : none;
    const int64_t next_second = j + 1 < second.size() ? second[j + 1].bytes : none;
    bytes = std::min(next_first, next_second);
    if (bytes == none) break;
    if (next_first == bytes) ++i;
    if (next_second == bytes) ++j;
  }
  merge(unchanged);
}

void StepMinimum::merge(size_t unchanged) {
  if (candidate_.empty()) return;
  size_t i = unchanged;
  while (i < best_.size() && best_[i].bytes <= candidate_.front().bytes) ++i;
  if (i > 0 && best_[i - 1].time <= candidate_.front().time) return;
  if (i > 0 && best_[i - 1].bytes == candidate_.front().bytes) --i;
  unchanged = i;
  merged_.clear();
  Ticks least = std::numeric_limits<Ticks>::max();
  const auto take = [&](const Step& step) {
    if (step.time >= least) return;
    least = step.time;
    if (!merged_.empty() && merged_.back().bytes == step.bytes) {
      merged_.back() = step;
    } else {
      merged_.push_back(step);
    }
  };
  size_t j = 0;
  while (i < best_.size() && j < candidate_.size())
    take(best_[i].bytes < candidate_[j].bytes ? best_[i++] : candidate_[j++]);
  while (j < candidate_.size()) take(candidate_[j++]);
  while (i < best_.size() && best_[i].time >= least) ++i;
  if (i < best_.size() && best_[i].bytes == merged_.back().bytes) merged_.pop_back();
  merged_.insert(merged_.end(), best_.begin() + static_cast<std::ptrdiff_t>(i), best_.end());
  best_.resize(unchanged);
  best_.insert(best_.end(), merged_.begin(), merged_.end());
}

StepFunction thin_out(const StepFunction& steps, size_t limit) {
  if (steps.size() <= limit || limit < 2) return steps;
  StepFunction thinned;
  thinned.reserve(limit);
  for (size_t i = 0; i < limit; ++i) thinned.push_back(steps[i * (steps.size() - 1) / (limit - 1)]);
  return thinned;
}

}  // namespace remat::detail
