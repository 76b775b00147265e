// SPDX-License-Identifier: BSD-3-Clause

// Making dry tensors and storages, and checking whether tensors can exchange data.
#include <remat/placeholder/dry_factories.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <optional>

#include <remat/placeholder/placeholder.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

void check_options(std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                   std::optional<bool> pin_memory) {
  TORCH_CHECK_VALUE(!device || device->index() <= 0,
                    "[register_device] device: expected remat_meta:0, got ", *device,
                    ". There is one device of this kind.");
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::Layout::Strided,
                              "[register_device] layout: expected strided, got ", *layout,
                              ". Dry tensors are strided.");
  TORCH_CHECK_VALUE(!pin_memory.value_or(false),
                    "[register_device] pin_memory: expected false on remat_meta, got true. Only "
                    "CPU memory can be pinned.");
}

class DryAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t /*size_bytes*/) override {
    return {nullptr, c10::Device(c10::DeviceType::PrivateUse1, 0)};
  }
  void copy_data(void* /*target*/, const void* /*source*/, size_t /*size_bytes*/) const override {}
};

}  // namespace

at::Tensor DryFactories::empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<c10::MemoryFormat> format) {
  check_options(layout, device, pin_memory);
  const at::Tensor shape = at::empty(sizes, at::TensorOptions(at::kMeta).memory_format(format));
  return make_dry(sizes, shape.strides(), c10::dtype_or_default(dtype), "aten::empty");
}

at::Tensor DryFactories::empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                       std::optional<c10::ScalarType> dtype,
                                       std::optional<c10::Layout> layout,
                                       std::optional<c10::Device> device,
                                       std::optional<bool> pin_memory) {
  check_options(layout, device, pin_memory);
  return make_dry(sizes, strides, c10::dtype_or_default(dtype), "aten::empty_strided");
}

bool DryFactories::has_compatible_shallow_copy_type(const at::Tensor& self,
                                                    const at::Tensor& from) {
  const auto is_ours = [](const at::Tensor& tensor) {
    return is_placeholder(tensor) && placeholder_info(tensor).kind == PlaceholderKind::kDry;
  };
  if (!is_ours(self) && !is_ours(from))
    return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
  return self.layout() == c10::Layout::Strided && from.layout() == c10::Layout::Strided;
}

c10::Allocator* DryFactories::allocator() {
  static auto* const allocator = new DryAllocator();
  return allocator;
}

c10::intrusive_ptr<c10::StorageImpl> DryFactories::make_storage(
    c10::StorageImpl::use_byte_size_t /*in_bytes*/, c10::SymInt size_bytes, c10::DataPtr /*data*/,
    c10::Allocator* /*allocator*/, bool /*resizable*/) {
  const int64_t bytes = size_bytes.expect_int();
  c10::Storage storage = make_dry_storage(static_cast<size_t>(bytes), "a storage");
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim(storage.unsafeReleaseStorageImpl());
}

}  // namespace remat
