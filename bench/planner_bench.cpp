// SPDX-License-Identifier: BSD-3-Clause

// Plans all budgets of a model at once, on one thread. peak_MB is the peak of the whole process, so
// it is right only if a row runs alone: --benchmark_filter=NAME.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <remat/planner/planner.h>

namespace {

double peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

/// GPT-2 large with batches of 2 x 512 tokens on a V100.
remat::Profile gpt2_large() {
  const std::string path = REMAT_PLANNER_DATA "/large_gpt2l_2x512_v100.json";
  std::ifstream file(path);
  return remat::Profile::from_json(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

/// Times the construction of a planner from the profile, together with its plans for ten budgets.
void plan_all(benchmark::State& state, const remat::Profile& profile) {
  size_t breakpoints = 0;
  for (auto _ : state) {
    const remat::Planner planner(profile);
    const remat::Frontier& frontier = planner.frontier();
    breakpoints = frontier.points().size();
    for (int i = 1; i <= 10; ++i) {
      const remat::Plan plan = planner.plan(frontier.no_checkpoint_peak_bytes() * i / 10);
      benchmark::DoNotOptimize(plan.total_time_us);
    }
  }
  state.counters["regions"] = static_cast<double>(profile.chain.size());
  state.counters["breakpoints"] = static_cast<double>(breakpoints);
  state.counters["peak_MB"] = peak_megabytes();
}

void gpt2_large_74_regions(benchmark::State& state) {
  plan_all(state, gpt2_large());
}
BENCHMARK(gpt2_large_74_regions)->Unit(benchmark::kMillisecond);

/// 96 layers of 2 regions each, and the last region of GPT-2, without the region of the embedding.
void layers_96_193_regions(benchmark::State& state) {
  remat::Profile profile = gpt2_large();
  const std::vector<int> whole = std::exchange(profile.chain, {});
  for (int layer = 0; layer < 96; ++layer)
    profile.chain.insert(profile.chain.end(), whole.begin() + 1, whole.begin() + 3);
  profile.chain.push_back(whole.back());
  plan_all(state, profile);
}
BENCHMARK(layers_96_193_regions)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
