// SPDX-License-Identifier: BSD-3-Clause

// A region open on this thread: the untyped half of checkpoint().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>

#include <remat/tape/export.h>
#include <remat/tape/region_body.h>

namespace remat {

class ForwardScope;
class Region;
class Replayer;
struct CheckpointOptions;

namespace detail {

/// False where a region is a plain call: where autograd records nothing (NoGradGuard,
/// InferenceMode) and where ops are written into a graph (make_fx, torch.export), which has no
/// checkpoints then.
REMAT_API bool records_regions();

/// True if this thread runs a function that is cut into segments: a plan says what it keeps, and
/// it has no regions of its own.
REMAT_API bool runs_in_segments();

/// Throws ValueError, naming the option, if `options` cannot be used.
REMAT_API void check_options(const CheckpointOptions& options, const char* where);

/// Opens a region when made; closes it when destroyed, by an exception of the function too.
class REMAT_API ForwardRegion {
 public:
  ForwardRegion(const CheckpointOptions& options, std::unique_ptr<const RegionBody> body,
                c10::ArrayRef<at::Tensor> arguments);
  ForwardRegion(const ForwardRegion&) = delete;
  ForwardRegion& operator=(const ForwardRegion&) = delete;
  ~ForwardRegion();

  /// The function has returned `outputs`. Throws if the region cannot be replayed.
  void finish(c10::ArrayRef<at::Tensor> outputs);

 private:
  std::shared_ptr<Region> region_;
  std::shared_ptr<Replayer> replayer_;  // until the forward has ended
  uint64_t first_sequence_nr_;
  std::unique_ptr<ForwardScope> scope_;
};

}  // namespace detail
}  // namespace remat
