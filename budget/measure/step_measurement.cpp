// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/step_measurement.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

#include <remat/memory_plan/step_cuts.h>
#include <remat/tape/region.h>
#include <remat/tape/tape.h>

#include "step_costs.h"
#include "step_structure.h"

namespace remat {

struct StepMeasurement::Parts {
  Parts(std::string name, StepLog log, const Region& region, const Tape& tape)
      : forward(std::move(log)),
        records(forward, tape.records().size()),
        structure(structure_of(forward, records, region, tape, std::move(name))),
        leaves(region.outside().captured()),
        costs(forward, records) {}

  const StepLog forward;
  const RecordsOfOps records;
  const StepProfile structure;
  const std::vector<at::Tensor> leaves;
  StepCosts costs;
};

StepMeasurement::StepMeasurement(std::string name, StepLog forward) {
  const std::shared_ptr<const Region> region =
      forward.region == 0 ? nullptr : find_region(forward.region);
  const auto replayer = region ? region->replayer() : nullptr;
  const Tape* const tape = replayer ? replayer->tape() : nullptr;
  TORCH_CHECK_NOT_IMPLEMENTED(
      tape && !tape->records().empty() && !forward.saves.empty(), "[profile] '", name,
      "': expected a function that saves what it makes for backward, got one that does not. There "
      "is nothing to plan: call it as it is.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      forward.inner_region.empty(), "[profile] '", name,
      "': expected a function without regions of its own, got ", forward.inner_region,
      ": a plan says what all of the step keeps. Measure it without its checkpoints.");
  for (const at::Tensor& tensor : region->outside().captured()) {
    TORCH_CHECK_VALUE(tensor.is_leaf(), "[profile] '", name,
                      "': expected arguments and captured tensors to be leaves, or to need no "
                      "gradient, got one made by ",
                      tensor.grad_fn()->name(),
                      ": every step would run backward through that again. Pass "
                      "tensor.detach().requires_grad_(), or make it in the function.");
  }
  parts_ = std::make_unique<Parts>(std::move(name), std::move(forward), *region, *tape);
}

StepMeasurement::~StepMeasurement() = default;

bool StepMeasurement::add_step(const StepLog& step) {
  return parts_->costs.add(step);
}

const std::vector<at::Tensor>& StepMeasurement::leaves() const {
  return parts_->leaves;
}

namespace {

/// The peak of a step of which everything is kept, as it is without remat: which takes no copies of
/// memory from outside.
int64_t plain_peak(StepProfile profile) {
  for (StepValue& value : profile.values) {
    if (profile.values[static_cast<size_t>(value.storage)].maker < 0) value.bytes = 0;
  }
  StepCuts everything;
  for (const auto i : c10::irange(profile.records.size())) {
    const StepRecord& record = profile.records[i];
    for (const auto j : c10::irange(record.makes.size() + record.writes.size()))
      everything.keep.push_back({static_cast<int32_t>(i), static_cast<int32_t>(j)});
  }
  return simulate_step(profile, everything).peak_bytes;
}

}  // namespace

StepProfile StepMeasurement::profile() const {
  StepProfile profile = parts_->structure;
  parts_->costs.fill(profile);
  if (!profile.nodes.empty()) profile.plain_peak_bytes = plain_peak(profile);
  return profile;
}

}  // namespace remat
