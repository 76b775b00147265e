// SPDX-License-Identifier: BSD-3-Clause

// The scope of a region's forward: drops what autograd saves and leaves a slot instead.
#pragma once

#include <memory>

#include <remat/tape/export.h>
#include <remat/tape/region.h>
#include <remat/tape/saved_tensor_frame.h>

namespace remat {

class REMAT_API ForwardFrame final : public SavedTensorFrame {
 public:
  explicit ForwardFrame(std::shared_ptr<Region> region);
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

 private:
  std::shared_ptr<Region> region_;
};

}  // namespace remat
