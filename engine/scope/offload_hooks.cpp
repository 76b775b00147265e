// SPDX-License-Identifier: BSD-3-Clause

// Hooks that replace packed tensors by a store's tickets, and the store in host memory.
#include <remat/engine/offload_hooks.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <any>

#include <remat/engine/offload_store.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/tensor_meta.h>

namespace remat {
namespace {

/// A view from the first to the last element, since one cannot copy to an expanded tensor.
at::Tensor flat_span(const at::Tensor& tensor) {
  const int64_t size = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), 1);
  return at::as_strided(tensor, {size}, {1});
}

at::Tensor copy_like(const at::Tensor& tensor, at::TensorOptions options) {
  if (!tensor.is_non_overlapping_and_dense()) {
    const at::Tensor span = copy_like(flat_span(tensor), options);
    return at::as_strided(span, tensor.sizes(), tensor.strides());
  }
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

std::shared_ptr<const SavedTensorsHooks> as_hooks(const std::shared_ptr<OffloadStore>& store) {
  if (!store) return nullptr;
  using Ticket = std::shared_ptr<OffloadStore::Ticket>;
  return std::make_shared<const SavedTensorsHooks>(SavedTensorsHooks{
      .pack = [store](const at::Tensor& tensor) -> std::any {
        Ticket ticket = store->put(tensor);
        TORCH_CHECK_VALUE(ticket, "[OffloadStore] put: expected a ticket for a ",
                          TensorMeta(tensor).str(), ", got null. Throw if it cannot be stored.");
        return ticket;
      },
      .unpack =
          [](const std::any& ticket) { return std::any_cast<const Ticket&>(ticket)->get(); }});
}

std::shared_ptr<const SavedTensorsHooks> as_input_hooks(
    const std::shared_ptr<OffloadStore>& store) {
  const auto hooks = as_hooks(store);
  return std::make_shared<const SavedTensorsHooks>(
      SavedTensorsHooks{.pack = [hooks](const at::Tensor& tensor) -> std::any {
                          const at::Tensor& original = *current_saved_tensor_info().original;
                          // Parameters stay alive anyway.
                          if (is_parameter(original) || !has_layout(tensor)) return tensor;
                          return hooks->pack(tensor);
                        },
                        .unpack =
                            [hooks](const std::any& packed) {
                              const auto* const tensor = std::any_cast<at::Tensor>(&packed);
                              return tensor ? *tensor : hooks->unpack(packed);
                            }});
}

std::shared_ptr<OffloadStore> host_memory_store() {
  return std::make_shared<HostMemoryStore>();
}

}  // namespace remat
