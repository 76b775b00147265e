// SPDX-License-Identifier: BSD-3-Clause

// Tickets in place of packed tensors.
#include "offload_hooks.h"

#include <c10/util/Exception.h>

#include <any>

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

}  // namespace remat
