// SPDX-License-Identifier: BSD-3-Clause

// Times two versions of the same work in turns, so that a slow moment of the machine affects both.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace remat::bench {

template <class F>
double seconds(F&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Takes samples of both versions. `plain` and `ours` are called in turns and return the seconds of
/// one sample; the benchmark's own time column is that of ours. Counters: medians of both, of the
/// difference and of the ratio, per `units` of work.
template <class Plain, class Ours>
void run_paired(benchmark::State& state, double units, Plain&& plain, Ours&& ours) {
  std::vector<double> plain_s;
  std::vector<double> ours_s;
  std::vector<double> over_s;
  std::vector<double> ratio;
  for (auto _ : state) {
    const bool plain_first = plain_s.size() % 2 == 0;
    double a = plain_first ? plain() : ours();
    double b = plain_first ? ours() : plain();
    if (!plain_first) std::swap(a, b);
    plain_s.push_back(a);
    ours_s.push_back(b);
    over_s.push_back(b - a);
    ratio.push_back(b / a);
    state.SetIterationTime(b);
  }
  constexpr double kNs = 1e9;
  state.counters["plain_ns"] = median(plain_s) / units * kNs;
  state.counters["ours_ns"] = median(ours_s) / units * kNs;
  state.counters["over_ns"] = median(over_s) / units * kNs;
  state.counters["ratio"] = median(ratio);
}

}  // namespace remat::bench
