// SPDX-License-Identifier: BSD-3-Clause

// Measures the cost of regions against the same code in plain LibTorch, in one process. The counter
// over_ns is the cost of remat per unit, which the benchmark's label names.
// docs/explanation/performance.md explains each row.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/remat.h>

namespace {

using at::Tensor;

template <class F>
double seconds(F&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Takes samples of two versions in turns. `plain` and `ours` return the seconds of one sample; the
/// benchmark's own time column shows `ours`. Counters: medians of plain, ours and their difference,
/// each divided by `units` (units of work in a sample), and the median ratio.
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

// Number of graphs in a sample of one-op rows; a sample must take much longer than the clock's
// resolution.
constexpr int64_t kGraphs = 50;

/// sin saves its argument, so each op has one saved tensor.
Tensor chain(Tensor x, int64_t ops) {
  for (int64_t i = 0; i < ops; ++i) x = x.sin();
  return x;
}

Tensor plain(const Tensor& x, int64_t ops) {
  return chain(x, ops);
}

Tensor region(const Tensor& x, int64_t ops) {
  return remat::checkpoint()([ops](const Tensor& input) { return chain(input, ops); })(x);
}

Tensor unseen_region(const Tensor& x, int64_t ops) {
  return remat::checkpoint({.intercept = false})(
      [ops](const Tensor& input) { return chain(input, ops); })(x);
}

Tensor taped_region(const Tensor& x, int64_t ops) {
  return remat::checkpoint({.name = "taped", .replay = remat::ReplayEngine::kTape})(
      [ops](const Tensor& input) { return chain(input, ops); })(x);
}

/// Makes each op a SAVE call of its own.
Tensor saved_ops(const Tensor& x, int64_t ops) {
  static const std::vector<std::string>& names = *new auto([] {
    std::vector<std::string> all;
    for (int i = 0; i < 1000; ++i) all.push_back("op" + std::to_string(i));
    return all;
  }());
  return remat::checkpoint()([ops](const Tensor& input) {
    Tensor y = input;
    for (int64_t i = 0; i < ops; ++i) {
      y = remat::native_op([](const Tensor& t) { return t.sin(); }, names[i],
                           remat::Policy::kSave)(y);
    }
    return y;
  })(x);
}

/// Makes all ops one SAVE call.
Tensor saved_chain(const Tensor& x, int64_t ops) {
  return remat::checkpoint()([ops](const Tensor& input) {
    return remat::native_op([ops](const Tensor& t) { return chain(t, ops); }, "chain",
                            remat::Policy::kSave)(input);
  })(x);
}

using Run = Tensor (*)(const Tensor&, int64_t);

Tensor leaf() {
  return at::ones({4}).requires_grad_(true);
}

/// Seconds for `graphs` forwards; the graphs are freed after the clock has stopped.
double forward_s(Run run, const Tensor& x, int64_t ops, int64_t graphs) {
  std::vector<Tensor> outputs;
  outputs.reserve(graphs);
  return seconds([&] {
    for (int64_t i = 0; i < graphs; ++i) outputs.push_back(run(x, ops));
  });
}

/// Seconds for the gradients of `graphs` graphs made before the clock started.
double backward_s(Run run, const Tensor& x, int64_t ops, int64_t graphs) {
  std::vector<Tensor> outputs;
  outputs.reserve(graphs);
  for (int64_t i = 0; i < graphs; ++i) outputs.push_back(run(x, ops));
  const Tensor grad = at::ones_like(x);
  return seconds([&] {
    for (const Tensor& y : outputs) torch::autograd::grad({y}, {x}, {grad});
  });
}

double step_s(Run run, const Tensor& x, int64_t ops, int64_t graphs) {
  const Tensor grad = at::ones_like(x);
  return seconds([&] {
    for (int64_t i = 0; i < graphs; ++i) torch::autograd::grad({run(x, ops)}, {x}, {grad});
  });
}

/// Seconds for forwards while a recorder writes to a file that discards everything.
double recorded_s(Run run, const Tensor& x, int64_t ops, int64_t graphs) {
  const remat::Recorder recorder("/dev/null");
  return forward_s(run, x, ops, graphs);
}

/// Seconds for the replays: the time of `run`'s backwards minus the time of plain backwards.
double replay_s(Run run, const Tensor& x, int64_t ops, int64_t graphs) {
  return backward_s(run, x, ops, graphs) - backward_s(plain, x, ops, graphs);
}

using Timer = double (*)(Run run, const Tensor& x, int64_t ops, int64_t graphs);

/// A benchmark that compares `ours`, timed by `timer`, with `base`, timed by `base_timer`. A sample
/// runs `graphs` graphs of `ops` ops, and counters are per op.
struct Row {
  const char* name;
  const char* label;
  Timer base_timer;
  Run base;
  Timer timer;
  Run ours;
  int64_t ops;
  int64_t graphs = 1;
};

constexpr const char* kUnseenBase = "per op, over a region without interception";

const Row kRows[] = {
    // The fixed cost of one region's forward with one op, including the cost of the op's saved
    // tensor.
    {"region_forward", "per region", forward_s, plain, forward_s, region, 1, kGraphs},
    // The fixed cost of one region's backward. Since sin saves its argument first, the replay stops
    // before it runs the op, so that only remat's own work remains.
    {"region_backward", "per region", backward_s, plain, backward_s, region, 1, kGraphs},
    // The cost of seeing and logging an op, in forwards of a region of many ops.
    {"intercepted_op", kUnseenBase, forward_s, unseen_region, forward_s, region, 1000},
    // The cost of a saved tensor, without interception.
    {"saved_tensor", "per saved tensor", forward_s, plain, forward_s, unseen_region, 1000},
    // The cost of a SAVE call around the one op of a region.
    {"save_call", "per call, over the same op bare", forward_s, region, forward_s, saved_chain, 1,
     kGraphs},
    // Forward and backward with everything recomputed, and with nothing recomputed.
    {"full_recompute", "per op", step_s, plain, step_s, region, 200},
    {"each_op_saved", "per op, each its own SAVE call", step_s, plain, step_s, saved_ops, 200},
    {"all_saved", "per op, in one SAVE call", step_s, plain, step_s, saved_chain, 200},
    {"recorded_op", kUnseenBase, forward_s, unseen_region, forward_s, taped_region, 1000},
    {"tape_replay", "per op, the replay alone over a plain forward", forward_s, plain, replay_s,
     taped_region, 200},
    {"tape_step", "per op", step_s, plain, step_s, taped_region, 200},
    // The cost of a running recorder, outside regions and inside a region.
    {"recorder_outside", "per op", forward_s, plain, recorded_s, plain, 1000},
    {"recorder_in_region", "per op, over a region without a recorder", forward_s, region,
     recorded_s, region, 1000},
};

void compare(benchmark::State& state, const Row& row) {
  const Tensor x = leaf();
  // The first replay compares a tape by hashes; later replays trust it, and only these are timed.
  row.ours(x, row.ops).sum().backward();
  run_paired(
      state, static_cast<double>(row.ops * row.graphs),
      [&] { return row.base_timer(row.base, x, row.ops, row.graphs); },
      [&] { return row.timer(row.ours, x, row.ops, row.graphs); });
  state.SetLabel(row.label);
}

// Times plain code twice: before the process has run any region, and again after its first region
// has installed remat's engine. Registered first so that nothing is installed yet.
void no_region(benchmark::State& state) {
  constexpr int64_t kOps = 1000;
  constexpr int kSamples = 300;
  const Tensor x = leaf();
  const auto sample = [&] {
    std::vector<double> times;
    for (int i = 0; i < kSamples; ++i) times.push_back(step_s(plain, x, kOps, 1));
    return median(times) / kOps * 1e9;
  };
  sample();
  const double before = sample();
  // The process's first region puts remat's kernels in front of LibTorch's ops.
  const double first_region = seconds([&] { region(x, 1); });
  double after = 0;
  for (auto _ : state) {
    after = sample();
    state.SetIterationTime(after * 1e-9 * kOps);
  }
  state.counters["first_region_ms"] = first_region * 1e3;
  state.counters["plain_ns"] = before;
  state.counters["ours_ns"] = after;
  state.counters["over_ns"] = after - before;
  state.counters["ratio"] = after / before;
  state.SetLabel("per op, forward and backward");
}

BENCHMARK(no_region)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(1);

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  for (const Row& row : kRows) {
    const auto run = [&row](benchmark::State& state) { compare(state, row); };
    benchmark::RegisterBenchmark(row.name, run)->UseManualTime()->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
