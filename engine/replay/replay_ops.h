// SPDX-License-Identifier: BSD-3-Clause

// Observing the ops of a replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <remat/engine/op_call.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/region.h>
#include <remat/engine/storage_table.h>

#include <remat/engine/op_writer.h>
#include "replay_comparison.h"
#include "replay_memory.h"
#include "replay_products.h"
#include "replay_progress.h"

namespace remat {

/// Compares ops with the forward's, and gives them shadows of what the forward wrote outside.
class ReplayOps final : public OpObserver {
 public:
  ReplayOps(const Region& region, ReplayProgress& progress, ReplayComparison& comparison,
            ReplayMemory& memory, const ReplayProducts& products)
      : region_(region),
        progress_(progress),
        comparison_(comparison),
        memory_(memory),
        products_(products),
        streams_(region.streams()) {}

  void before_op(OpCall& call, bool logged) override;
  void after_op(OpCall& call) override;
  bool skips_view(const at::Tensor& viewed) const override;
  void before_part(const OpCall& call) override;
  void adopt(const at::Tensor& tensor) override;
  at::Tensor stand_in(const at::Tensor& tensor) override;
  torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) override;
  void phase_was_asked() override { comparison_.end(); }

 private:
  void check(OpCall& call);
  SeenTensors look_at_arguments(const OpCall& call);
  void check_touched(OpCall& call);

  const Region& region_;
  ReplayProgress& progress_;
  ReplayComparison& comparison_;
  ReplayMemory& memory_;
  const ReplayProducts& products_;
  UsedStreams streams_;
  struct Op {
    bool is_compared = false;
    bool is_cast = false;
    Origin made = Origin::inside();  // Origin of the results, if the op is not compared.
    bool touches_outside = false;
    bool touches_product = false;
    bool views_unknown = false;
    bool is_exchanged = false;  // An argument was replaced.
  };
  Op op_;  // The running op.
};

}  // namespace remat
