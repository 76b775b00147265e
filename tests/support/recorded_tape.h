// SPDX-License-Identifier: BSD-3-Clause

// A region that has recorded the tape of a function, for tests of the tape and of its replay.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/region.h>
#include <remat/remat.h>
#include <remat/tape/tape.h>
#include <remat/tape/tape_replayer.h>

#include "support/catch.h"
#include "support/named_step.h"

namespace remat {

/// Runs the function's forward at once, and keeps its region alive.
class RecordedTape {
 public:
  explicit RecordedTape(const TensorFn& fn, CheckpointOptions options = {.name = "r"})
      : RecordedTape(fn, step_input(), std::move(options)) {}
  RecordedTape(const TensorFn& fn, at::Tensor x, CheckpointOptions options = {.name = "r"})
      : x_(std::move(x)) {
    const uint64_t before = youngest_region();
    options.replay = ReplayEngine::kTape;
    y_ = checkpoint(options)(fn)(x_);
    region_ = find_region(before + 1);  // Regions of segments come later.
    REQUIRE(region_);
    replayer_ = std::dynamic_pointer_cast<const TapeReplayer>(region_->replayer());
  }

  const at::Tensor& x() const { return x_; }
  const at::Tensor& y() const { return y_; }
  const Region& region() const { return *region_; }
  const TapeReplayer& replayer() const { return *replayer_; }
  const Tape& tape() const { return *replayer_->tape(); }

  std::vector<std::string> ops() const {
    std::vector<std::string> names;
    for (const TapeRecord& record : tape().records()) names.push_back(record.op->name());
    return names;
  }

  /// The number of values with this source.
  size_t count(TapeValue::Source source) const {
    const auto& values = tape().values();
    return std::count_if(values.begin(), values.end(),
                         [&](const TapeValue& value) { return value.source == source; });
  }

  /// The values of the slots that one replay gives.
  ReplayedSlots replay() const {
    ReplayedSlots slots(region_->slots().size());
    replayer_->replay(*region_, slots);
    return slots;
  }

 private:
  at::Tensor x_;
  at::Tensor y_;
  std::shared_ptr<const Region> region_;
  std::shared_ptr<const TapeReplayer> replayer_;
};

}  // namespace remat
