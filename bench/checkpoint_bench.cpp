// SPDX-License-Identifier: BSD-3-Clause

// Measures the cost of regions against the same code in plain LibTorch, in one process. over_ns is
// the cost of remat per unit named in the benchmark's label; docs/explanation/performance.md
// explains each row.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/trace_sink.h>
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

// graphs per sample, so that a sample is long against the clock's resolution
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

using Timer = double (*)(Run run, const Tensor& x, int64_t ops, int64_t graphs);

/// Times two ways to run chains of `ops` ops, `graphs` of them in a sample. Counters are per op, or
/// per graph for graphs of one op.
void compare(benchmark::State& state, Timer timer, Run base, Run ours, int64_t ops,
             int64_t graphs = 1) {
  const Tensor x = leaf();
  run_paired(
      state, static_cast<double>(ops * graphs), [&] { return timer(base, x, ops, graphs); },
      [&] { return timer(ours, x, ops, graphs); });
}

// Fixed cost of one region's forward, relative to its one op; it includes the cost of its one saved
// tensor.
void region_forward(benchmark::State& state) {
  compare(state, forward_s, plain, region, 1, kGraphs);
  state.SetLabel("per region");
}

// Fixed cost of one region's backward. The replay stops before its one op runs, since sin saves its
// argument first, so that only remat's own work remains.
void region_backward(benchmark::State& state) {
  compare(state, backward_s, plain, region, 1, kGraphs);
  state.SetLabel("per region");
}

// Forward of a region of many ops with and without interception: the cost of seeing and logging an
// op.
void intercepted_op(benchmark::State& state) {
  compare(state, forward_s, unseen_region, region, 1000);
  state.SetLabel("per op, over a region without interception");
}

// Forward of a region of many ops: the cost of each saved tensor.
void saved_tensor(benchmark::State& state) {
  compare(state, forward_s, plain, unseen_region, 1000);
  state.SetLabel("per saved tensor, without interception");
}

// Forward and backward with everything recomputed.
void full_recompute(benchmark::State& state) {
  compare(state, step_s, plain, region, 200);
  state.SetLabel("per op");
}

// Forward of a region of one op, in a SAVE call and bare: the cost of the SAVE call.
void save_call(benchmark::State& state) {
  compare(state, forward_s, region, saved_chain, 1, kGraphs);
  state.SetLabel("per call, over the same op bare");
}

// Forward and backward with nothing recomputed.
void each_op_saved(benchmark::State& state) {
  compare(state, step_s, plain, saved_ops, 200);
  state.SetLabel("per op, each its own SAVE call");
}

void all_saved(benchmark::State& state) {
  compare(state, step_s, plain, saved_chain, 200);
  state.SetLabel("per op, in one SAVE call");
}

// Forward of a region of many ops: the cost of seeing and recording an op.
void recorded_op(benchmark::State& state) {
  constexpr int64_t kOps = 1000;
  const Tensor x = leaf();
  // the first replay is compared by hashes; the tape is trusted afterwards
  taped_region(x, kOps).sum().backward();
  compare(state, forward_s, unseen_region, taped_region, kOps);
  const Tensor y = taped_region(x, kOps);
  const auto bytes = static_cast<double>(remat::region_tapes().back().size_bytes());
  state.counters["tape_bytes"] = bytes / kOps;
  state.SetLabel("per op, over a region without interception");
}

// The replay's share of the backward of a chain, over the chain's plain forward.
void tape_replay(benchmark::State& state) {
  constexpr int64_t kOps = 200;
  const Tensor x = leaf();
  run_paired(
      state, kOps, [&] { return forward_s(plain, x, kOps, 1); },
      [&] { return backward_s(taped_region, x, kOps, 1) - backward_s(plain, x, kOps, 1); });
  state.SetLabel("per op, the replay alone over a plain forward");
}

// Forward and backward with everything recomputed from the tape.
void tape_step(benchmark::State& state) {
  compare(state, step_s, plain, taped_region, 200);
  state.SetLabel("per op");
}

/// Seconds for forwards while a recorder writes to a file that discards everything.
double recorded_s(Run run, const Tensor& x, int64_t ops, int64_t graphs) {
  const remat::Recorder recorder("/dev/null");
  return forward_s(run, x, ops, graphs);
}

// The cost, for an op in a region, of recorders that could be there but are not: the op looks for a
// listener before and after it runs, and before and after autograd saves. Outside regions there is
// no cost: LibTorch has no callback then.
void recorder_off(benchmark::State& state) {
  constexpr int kLooks = 4;
  for (auto _ : state) {
    for (int i = 0; i < kLooks; ++i) {
      if (remat::trace_sink.load(std::memory_order_acquire))
        state.SkipWithError("somebody listens");
      benchmark::ClobberMemory();
    }
  }
  state.SetLabel("per op");
}

// The cost of a running recorder for an op outside regions.
void recorder_outside(benchmark::State& state) {
  constexpr int64_t kOps = 1000;
  const Tensor x = leaf();
  run_paired(
      state, kOps, [&] { return forward_s(plain, x, kOps, 1); },
      [&] { return recorded_s(plain, x, kOps, 1); });
  state.SetLabel("per op");
}

// The cost of a running recorder for an op in a region, compared with the region alone.
void recorder_in_region(benchmark::State& state) {
  constexpr int64_t kOps = 1000;
  const Tensor x = leaf();
  run_paired(
      state, kOps, [&] { return forward_s(region, x, kOps, 1); },
      [&] { return recorded_s(region, x, kOps, 1); });
  state.SetLabel("per op, over a region without a recorder");
}

// Code without a region, before and after remat's engine is in front of LibTorch's: both sides run
// the same code, the second after the first region of the process. Registered first, so that the
// process has no engine yet.
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
BENCHMARK(region_forward)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(region_backward)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(intercepted_op)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(saved_tensor)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(full_recompute)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(save_call)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(each_op_saved)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(all_saved)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(recorded_op)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(tape_replay)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(recorder_off);
BENCHMARK(recorder_outside)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(recorder_in_region)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(tape_step)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
