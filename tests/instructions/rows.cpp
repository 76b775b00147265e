// SPDX-License-Identifier: BSD-3-Clause

// Runs the rows of count.py that are C++: instruction_rows ROW...
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <valgrind/callgrind.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include <remat/remat.h>

namespace {

using at::Tensor;
using Body = std::function<void()>;
using Function = std::function<Tensor(const Tensor&)>;

constexpr int kWarmUps = 4;
constexpr int kRepeats = 10;
constexpr int kChain = 40;

/// Counts kRepeats calls of body(). prepare() runs before each and is not counted.
void count(
    const char* row, const Body& body, const Body& prepare = [] {}) {
  for (int i = 0; i < kWarmUps + kRepeats; ++i) {
    prepare();
    if (i >= kWarmUps) CALLGRIND_TOGGLE_COLLECT;
    body();
    if (i >= kWarmUps) CALLGRIND_TOGGLE_COLLECT;
  }
  CALLGRIND_DUMP_STATS_AT(row);
}

Tensor one(const Tensor& x) {
  return x.sin();
}

Tensor chain(const Tensor& x) {
  Tensor y = x;
  for (int i = 0; i < kChain; ++i) y = y.sin();
  return y;
}

Tensor one_call(const Tensor& x) {
  return remat::native_op([](const Tensor& t) { return t.sin(); }, "sin", remat::Policy::kSave)(x);
}

Function in_region(Function function, remat::ReplayEngine replay) {
  return remat::checkpoint({.replay = replay})(std::move(function));
}

void count_forward(const char* row, const Function& step, const Tensor& x) {
  Tensor result;
  count(row, [&] { result = step(x); });
}

void count_backward(const char* row, const Function& step, const Tensor& x) {
  const Tensor grad = at::ones_like(x);
  Tensor result;
  count(
      row, [&] { torch::autograd::grad({result}, {x}, {grad}); }, [&] { result = step(x); });
}

struct Row {
  decltype(&count_forward) count_part;
  Function step;
};

std::map<std::string, Row> rows() {
  const auto function = [](Function of) { return in_region(of, remat::ReplayEngine::kFunction); };
  const auto tape = [](Function of) { return in_region(of, remat::ReplayEngine::kTape); };
  return {
      {"cpp.forward.chain.plain", {count_forward, chain}},
      {"cpp.forward.one.function", {count_forward, function(one)}},
      {"cpp.backward.one.function", {count_backward, function(one)}},
      {"cpp.forward.chain.function", {count_forward, function(chain)}},
      {"cpp.backward.chain.function", {count_backward, function(chain)}},
      {"cpp.forward.chain.tape", {count_forward, tape(chain)}},
      {"cpp.backward.chain.tape", {count_backward, tape(chain)}},
      {"cpp.forward.call.save", {count_forward, function(one_call)}},
  };
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const Tensor x = at::ones({4}).requires_grad_(true);
  // Puts remat in front of LibTorch's kernels, and lets the tapes be compared and trusted.
  const std::map<std::string, Row> all = rows();
  for (const auto& [name, row] : all) {
    for (int i = 0; i < kWarmUps; ++i) row.step(x).sum().backward();
  }
  CALLGRIND_START_INSTRUMENTATION;
  for (int i = 1; i < argc; ++i) {
    const auto row = all.find(argv[i]);
    if (row == all.end()) {
      std::cerr << "[count] expected a row of instruction_rows, got " << argv[i] << '\n';
      return 2;
    }
    row->second.count_part(argv[i], row->second.step, x);
  }
}
