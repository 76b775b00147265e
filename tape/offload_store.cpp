// SPDX-License-Identifier: BSD-3-Clause

// The store in host memory.
#include <remat/tape/offload_store.h>

#include <utility>

#include <ATen/ops/empty_strided.h>

namespace remat {
namespace {

at::Tensor copy_like(const at::Tensor& tensor, at::TensorOptions options) {
  const at::Tensor copy =
      at::empty_strided(tensor.sizes(), tensor.strides(), options.dtype(tensor.dtype()));
  copy.copy_(tensor);
  return copy;
}

class HostTicket final : public OffloadStore::Ticket {
 public:
  explicit HostTicket(const at::Tensor& tensor)
      : device_(tensor.device()),
        copy_(copy_like(tensor,
                        at::TensorOptions().device(c10::kCPU).pinned_memory(tensor.is_cuda()))) {}

  at::Tensor get() override { return copy_like(copy_, at::TensorOptions().device(device_)); }

 private:
  c10::Device device_;
  at::Tensor copy_;
};

class HostMemoryStore final : public OffloadStore {
 public:
  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    return std::make_shared<HostTicket>(tensor);
  }
};

}  // namespace

std::shared_ptr<OffloadStore> host_memory_store() {
  return std::make_shared<HostMemoryStore>();
}

}  // namespace remat
