// SPDX-License-Identifier: BSD-3-Clause

// Each rank puts its bytes into the store under its own key and sums the bytes of all ranks.
#include "store_backend.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

namespace distributed_step {

StoreBackend::StoreBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : Backend(rank, size), store_(std::move(store)) {}

c10::intrusive_ptr<c10d::Work> StoreBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                       const c10d::AllreduceOptions& options) {
  TORCH_CHECK_NOT_IMPLEMENTED(options.reduceOp == c10d::ReduceOp::SUM,
                              "[store_backend] reduceOp: expected SUM, got another.");
  for (at::Tensor& tensor : tensors) {
    sum_over_ranks(tensor);
  }
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  done->markCompleted();
  return c10d::Work::create_from_future(done);
}

void StoreBackend::sum_over_ranks(at::Tensor& tensor) {
  const std::string key = std::to_string(executed_++) + "/";
  const at::Tensor own = tensor.contiguous();
  const auto* begin = static_cast<const uint8_t*>(own.const_data_ptr());
  store_->set(key + std::to_string(getRank()), std::vector<uint8_t>(begin, begin + own.nbytes()));

  at::Tensor sum = at::zeros_like(own);
  for (int rank = 0; rank < getSize(); ++rank) {
    // blocks until the rank has put it
    std::vector<uint8_t> bytes = store_->get(key + std::to_string(rank));
    sum.add_(at::from_blob(bytes.data(), own.sizes(), own.options()));
  }
  tensor.copy_(sum);
}

}  // namespace distributed_step
