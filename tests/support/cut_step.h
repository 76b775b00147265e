// SPDX-License-Identifier: BSD-3-Clause

// Runs one step of a function on a cut tape, and plainly.
#pragma once

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/planned_cuts.h>
#include <remat/remat.h>
#include <remat/tape/tape.h>

#include "support/catch.h"
#include "support/named_step.h"

namespace remat {

inline CheckpointOptions with_cuts(Cuts cuts) {
  return {.name = "r", .replay = ReplayEngine::kTape, .cuts = std::move(cuts)};
}

inline CheckpointOptions with_cuts(PlannedCuts cuts) {
  return {.name = "r",
          .replay = ReplayEngine::kTape,
          .plan = std::make_shared<const PlannedCuts>(std::move(cuts))};
}

inline std::vector<std::string> ops_of(const TensorFn& fn, const at::Tensor& x = step_input()) {
  const at::Tensor y = checkpoint({.name = "r", .replay = ReplayEngine::kTape})(fn)(x);
  return region_tapes().back().ops();
}

/// Returns, for Cuts::keep, every value that the records of the tape of `fn` make.
inline std::vector<Cuts::Kept> every_value(const TensorFn& fn, const at::Tensor& x = step_input()) {
  const at::Tensor y = checkpoint({.name = "r", .replay = ReplayEngine::kTape})(fn)(x);
  const RegionTape region_tape = region_tapes().back();
  const std::vector<TapeRecord>& records = region_tape.tape().records();
  std::vector<Cuts::Kept> all;
  for (size_t i = 0; i < records.size(); ++i) {
    const size_t made = size_t{records[i].outputs.count} + records[i].writes.count;
    for (size_t result = 0; result < made; ++result) all.push_back({.record = i, .result = result});
  }
  return all;
}

/// Checks that a step with these cuts is bitwise the plain one, and that fn ran once.
template <class AnyCuts = Cuts>
void check_cut(const TensorFn& fn, const AnyCuts& cuts, const Tensors& weights = {}) {
  int runs = 0;
  const TensorFn counted = [&](const at::Tensor& x) { return ++runs, fn(x); };
  torch::manual_seed(5);
  const Tensors got = step(checkpoint(with_cuts(cuts))(counted), weights);
  const at::Tensor drawn = torch::rand(3);
  CHECK(runs == 1);
  torch::manual_seed(5);
  check_same(got, step(fn, weights));
  CHECK(same_bits(drawn, torch::rand(3)));
}

/// Counts the calls of each op while it lives.
class OpCounts {
 public:
  OpCounts() {
    REQUIRE(!current);
    current = &counts_;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          ++(*current)[call.name()];
          return nullptr;
        }));
  }
  OpCounts(const OpCounts&) = delete;
  OpCounts& operator=(const OpCounts&) = delete;
  ~OpCounts() {
    at::removeCallback(handle_);
    current = nullptr;
  }

  int operator[](const std::string& op) { return counts_[op]; }

 private:
  inline static std::map<std::string, int>* current = nullptr;
  std::map<std::string, int> counts_;
  at::CallbackHandle handle_{};
};

}  // namespace remat
