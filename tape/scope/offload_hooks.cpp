// SPDX-License-Identifier: BSD-3-Clause

// Hooks that replace packed tensors by a store's tickets.
#include <remat/tape/offload_hooks.h>

#include <c10/util/Exception.h>

#include <any>

#include <remat/tape/tensor_layout.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

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

}  // namespace remat
