// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/step_measurement.h>

#include <c10/util/Exception.h>

#include <utility>

#include <remat/memory_plan/step_cuts.h>
#include <remat/tape/region.h>
#include <remat/tape/tape.h>

#include "step_costs.h"
#include "step_structure.h"

namespace remat {

struct StepMeasurement::Parts {
  Parts(std::string name, StepLog log, const Region& region, const Tape& tape)
      : device(log.main_device()),
        forward(counted_on(std::move(log), device)),
        records(forward, tape.records().size()),
        structure(structure_of(forward, records, region, tape, std::move(name), device)),
        leaves(region.outside().captured()),
        outside_bytes(bytes_outside(region)),
        costs(forward, records, results_of(forward, records, tape)) {}

  static StepLog counted_on(StepLog log, c10::Device device) {
    log.count_only(device);
    return log;
  }

  int64_t bytes_outside(const Region& region) const {
    int64_t bytes = 0;
    for (size_t i = 0; i < region.outside().size(); ++i) {
      const OutsideStorage& outside = region.outside()[i];
      if (counts_on(device, outside.meta().device()))
        bytes += static_cast<int64_t>(outside.whole().bytes_spanned());
    }
    return bytes;
  }

  const c10::Device device;
  const StepLog forward;
  const RecordsOfOps records;
  const StepProfile structure;
  std::vector<at::Tensor> leaves;
  const int64_t outside_bytes;
  StepCosts costs;
};

std::unique_ptr<StepMeasurement> StepMeasurement::of(std::string name, StepLog forward) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      forward.inner_region.empty(), "[profile] '", name,
      "': expected a function without regions of its own, got ", forward.inner_region,
      ": a plan says what all of the step keeps. Take checkpoints out of it, and turn off the "
      "model's own switch for them (gradient_checkpointing, set_grad_checkpointing).");
  const std::shared_ptr<const Region> region =
      forward.region == 0 ? nullptr : find_region(forward.region);
  const auto replayer = region ? region->replayer() : nullptr;
  const Tape* const tape = replayer ? replayer->tape() : nullptr;
  if (!tape || tape->records().empty() || forward.saves.empty()) return nullptr;
  return std::unique_ptr<StepMeasurement>(new StepMeasurement(
      std::make_unique<Parts>(std::move(name), std::move(forward), *region, *tape)));
}

StepMeasurement::StepMeasurement(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

StepMeasurement::~StepMeasurement() = default;

bool StepMeasurement::add_step(StepLog& step) {
  step.count_only(parts_->device);
  return parts_->costs.add(step);
}

c10::Device StepMeasurement::device() const {
  return parts_->device;
}

std::vector<at::Tensor> StepMeasurement::take_leaves() {
  return std::exchange(parts_->leaves, {});
}

int64_t StepMeasurement::outside_bytes() const {
  return parts_->outside_bytes;
}

bool StepMeasurement::has_varying_sizes() const {
  return parts_->costs.has_varying_sizes();
}

StepProfile StepMeasurement::profile() const {
  StepProfile profile = parts_->structure;
  parts_->costs.fill(profile);
  if (!profile.nodes.empty()) profile.plain_peak_bytes = plain_peak_bytes(profile);
  return profile;
}

}  // namespace remat
