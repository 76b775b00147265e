// SPDX-License-Identifier: BSD-3-Clause

// Runs steps of a model that fail at one point after the other, and checks the state after each.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <remat/engine/generator_state.h>

#include "faults/injector.h"
#include "faults/models.h"

namespace remat::faults {

/// Outcomes at the points of one model and kind.
struct Tally {
  size_t points = 0;                 ///< Points in a step without a fault.
  std::array<size_t, 3> by_phase{};  ///< Points in each phase.
  size_t tried = 0;
  size_t caught = 0;         ///< Errors that came out of the step as they were thrown, once.
  size_t past_stop = 0;      ///< Thrown by a function whose replay had all that backward needs.
  int64_t left_over = 0;     ///< Blocks of memory that failed steps have not freed.
  size_t faulty_points = 0;  ///< Points that `complaints` reports.
  std::vector<std::string> complaints{};  ///< The first complaints.

  std::string str() const;
};

/// Empties autograd's queue of this thread, in which an exception in backward leaves tasks.
class BackwardQueue {
 public:
  BackwardQueue();
  void flush() const;

 private:
  at::Tensor x_;
  at::Tensor y_;
};

/// A step that another thread repeats while steps of the rig fail. Returns what was wrong with the
/// step; empty if nothing.
using Beside = std::function<std::string()>;

class Rig {
 public:
  Rig(Model model, Regions regions);

  /// Makes every point of `kind` fail, each in its own step.
  Tally try_all(Kind kind, const Beside& beside = {});

  /// Describes how a step in regions differs from the plain step; empty if the bits are the same.
  std::string step_difference();

 private:
  struct Failure;

  void prepare();
  void clear_grads();
  Tensors step(const Regions& regions);
  Tensors results(const at::Tensor& loss) const;
  std::string difference(const Tensors& got) const;
  std::vector<GeneratorState> streams() const;
  bool fail_at(Kind kind, size_t point, const Beside& beside, Tally& tally);
  void run_failing(Kind kind, Failure& failure, Tally& tally);
  at::Tensor run_until(Failure& failure, Injector& injector);
  std::string complaints_after(const Failure& failure) const;
  std::string complaints_of_next_step(int64_t blocks, Tally& tally);

  const Model model_;
  const Regions regions_;
  const BackwardQueue queue_;
  Tensors initial_buffers_;
  Tensors plain_;
};

}  // namespace remat::faults
