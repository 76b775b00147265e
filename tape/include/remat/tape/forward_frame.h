// SPDX-License-Identifier: BSD-3-Clause

// The scope of a region's forward: drops what autograd saves and leaves a slot instead, and writes
// down what its ops touch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <memory>

#include <remat/tape/export.h>
#include <remat/tape/region.h>
#include <remat/tape/saved_tensor_frame.h>
#include <remat/tape/storage_table.h>

namespace remat {

class REMAT_API ForwardFrame final : public SavedTensorFrame {
 public:
  /// `inputs`: the region's tensor arguments. Ops are seen if the region asks for it.
  ForwardFrame(std::shared_ptr<Region> region, c10::ArrayRef<at::Tensor> inputs);

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  void before_op(OpCall& call, bool logged) override;
  void after_op(OpCall& call) override;
  void adopt(const at::Tensor& tensor) override;
  void phase_was_asked() override { region_->ops().break_off(); }

 private:
  Origin origin_of(const at::Tensor& tensor);
  void watch(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);

  std::shared_ptr<Region> region_;
  StorageTable storages_;
  int graph_task_;
  bool views_memory_outside_ = false;  // the op that runs
};

}  // namespace remat
