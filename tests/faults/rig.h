// SPDX-License-Identifier: BSD-3-Clause

// Steps of a model that fail at one point after the other, and what must hold after each.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <remat/tape/generator_state.h>

#include "faults/injector.h"
#include "faults/models.h"

namespace remat::faults {

/// What became of the points of one model and kind.
struct Tally {
  size_t points = 0;                 ///< In a step without a fault,
  std::array<size_t, 3> by_phase{};  ///< and of each phase.
  size_t tried = 0;
  size_t caught = 0;         ///< Came out of the step as they were thrown, once.
  size_t past_stop = 0;      ///< Thrown by a function whose replay had all that backward needs.
  int64_t left_over = 0;     ///< Blocks of memory that failed steps have not given back.
  size_t faulty_points = 0;  ///< Those of which `complaints` has something to say.
  std::vector<std::string> complaints{};  ///< The first of them.

  std::string str() const;
};

/// Empties what an exception in a backward leaves in autograd's queue of this thread.
class BackwardQueue {
 public:
  BackwardQueue();
  void flush() const;

 private:
  at::Tensor x_;
  at::Tensor y_;
};

/// Runs on another thread while a step fails, again and again until it is told to end, and says
/// what was wrong with it.
using Beside = std::function<std::string()>;

class Rig {
 public:
  Rig(Model model, Regions regions);

  /// Lets every point of `kind` fail, each in a step of its own.
  Tally try_all(Kind kind, const Beside& beside = {});

  /// How a step in regions differs from the plain one; empty if it has the same bits.
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
