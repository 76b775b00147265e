// SPDX-License-Identifier: BSD-3-Clause

// An open region of this thread: the untyped half of checkpoint().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>

#include <remat/engine/export.h>
#include <remat/engine/region_body.h>

namespace remat {

class ForwardScope;
class Region;
class Replayer;
struct CheckpointOptions;

namespace detail {

/// False if checkpoint() must be a plain call, because autograd records nothing (NoGradGuard,
/// InferenceMode) or because ops are traced into a graph (make_fx, torch.export). Such a graph has
/// no checkpoints.
REMAT_API bool records_regions();

/// True if this thread runs a region whose tape is cut into segments. The region's plan decides
/// what is kept, so regions inside this region are plain calls.
REMAT_API bool runs_in_segments();

/// Throws ValueError naming the option, prefixed by `where`, if `options` are invalid.
REMAT_API void check_options(const CheckpointOptions& options, const char* where);

/// Opens a region when constructed and closes it when destroyed, also if the function throws.
class REMAT_API ForwardRegion {
 public:
  ForwardRegion(const CheckpointOptions& options, std::unique_ptr<const RegionBody> body,
                c10::ArrayRef<at::Tensor> arguments);
  ~ForwardRegion();

  /// Call it when the function has returned `outputs`. Throws if the region cannot be replayed.
  void finish(c10::ArrayRef<at::Tensor> outputs);

 private:
  std::shared_ptr<Region> region_;
  std::shared_ptr<Replayer> replayer_;  // null once the forward has ended
  uint64_t first_sequence_nr_;
  std::unique_ptr<ForwardScope> scope_;
};

}  // namespace detail
}  // namespace remat
