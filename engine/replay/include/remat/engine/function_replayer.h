// SPDX-License-Identifier: BSD-3-Clause

// Replay by calling the user's function again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <utility>

#include <remat/engine/export.h>
#include <remat/engine/region_body.h>
#include <remat/engine/region_entry.h>
#include <remat/engine/region_input.h>
#include <remat/engine/replayer.h>

namespace remat {

struct ReplayParts;

/// Calls the function with the arguments and the state of region entry.
class REMAT_API FunctionReplayer final : public Replayer {
 public:
  FunctionReplayer(std::unique_ptr<const RegionBody> body, std::shared_ptr<RegionEntry> entry)
      : body_(std::move(body)), entry_(std::move(entry)) {}

  void finish_forward(const Region& region) override { entry_->finish_forward(region); }
  void replay(const Region& region, ReplayedSlots& slots) const override;
  void visit_inputs(c10::function_ref<void(const RegionInput&)> visit) const override {
    for (const RegionInput& input : entry_->inputs()) visit(input);
  }

 private:
  void run_body(const ReplayParts& parts, c10::ArrayRef<at::Tensor> inputs) const;

  std::unique_ptr<const RegionBody> body_;
  std::shared_ptr<RegionEntry> entry_;
};

}  // namespace remat
