// SPDX-License-Identifier: BSD-3-Clause

// A c10d backend whose ranks exchange tensors through a store.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace distributed_step {

// All-reduces dense CPU tensors. Sums are in the order of ranks, so that all ranks get the same
// bits. LibTorch's wheels have the header of Gloo's backend but not the Gloo headers that it
// includes; where you have them, use c10d::ProcessGroupGloo.
class StoreBackend final : public c10d::Backend {
 public:
  StoreBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  const std::string getBackendName() const override { return "store"; }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options = c10d::AllreduceOptions()) override;

  // Number of all-reduces of this rank so far.
  int64_t executed() const { return executed_; }

 private:
  void sum_over_ranks(at::Tensor& tensor);

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t executed_ = 0;
};

}  // namespace distributed_step
