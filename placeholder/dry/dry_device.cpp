// SPDX-License-Identifier: BSD-3-Clause

// The factories, the random generator and the hooks of remat_meta.
#include <remat/placeholder/dry_device.h>

#include <ATen/Utils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include <remat/placeholder/placeholder.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

void check_device(c10::Device device) {
  TORCH_CHECK_VALUE(device.type() == c10::DeviceType::PrivateUse1 && device.index() <= 0,
                    "[register_device] device: expected remat_meta:0, got ", device,
                    ". There is one device of this kind.");
}

void check_options(std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                   std::optional<bool> pin_memory) {
  check_device(device.value_or(dry_device()));
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::Layout::Strided,
                              "[register_device] layout: expected strided, got ", *layout,
                              ". Dry tensors are strided.");
  TORCH_CHECK_VALUE(!pin_memory.value_or(false),
                    "[register_device] pin_memory: expected false on remat_meta, got true. Only "
                    "CPU memory can be pinned.");
}

class DryAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t /*size_bytes*/) override { return {nullptr, dry_device()}; }
  void copy_data(void* /*target*/, const void* /*source*/, size_t /*size_bytes*/) const override {}
};

/// No op draws from this generator. Its seed can be set and read, so that code which seeds or saves
/// every generator runs.
class DryGenerator final : public c10::GeneratorImpl {
 public:
  explicit DryGenerator(uint64_t seed = c10::default_rng_seed_val)
      : GeneratorImpl(dry_device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        seed_(seed) {}

  void set_current_seed(uint64_t seed) override { seed_ = seed; }
  uint64_t current_seed() const override { return seed_; }
  void set_offset(uint64_t /*offset*/) override {}
  uint64_t get_offset() const override { return 0; }

  uint64_t seed() override {
    seed_ = c10::detail::getNonDeterministicRandom();
    return seed_;
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state =
        at::empty({sizeof(seed_)}, at::TensorOptions(at::kCPU).dtype(at::kByte));
    std::memcpy(state.mutable_data_ptr(), &seed_, sizeof(seed_));
    return state.getIntrusivePtr();
  }

  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK_VALUE(state.numel() == sizeof(seed_),
                      "[register_device] generator state: expected ", sizeof(seed_), " bytes, got ",
                      state.numel(),
                      ". Use a state that get_state() of a remat_meta generator returned.");
    std::memcpy(&seed_, state.data(), sizeof(seed_));
  }

 private:
  DryGenerator* clone_impl() const override { return new DryGenerator(seed_); }

  uint64_t seed_;
};

}  // namespace

at::Tensor dry_empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_options(layout, device, pin_memory);
  const at::Tensor shape = at::empty(sizes, at::TensorOptions(at::kMeta).memory_format(format));
  return make_dry(sizes, shape.strides(), c10::dtype_or_default(dtype), "aten::empty");
}

at::Tensor dry_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                             std::optional<c10::ScalarType> dtype,
                             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                             std::optional<bool> pin_memory) {
  check_options(layout, device, pin_memory);
  return make_dry(sizes, strides, c10::dtype_or_default(dtype), "aten::empty_strided");
}

bool has_dry_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_ours = [](const at::Tensor& tensor) {
    return is_placeholder(tensor) && placeholder_info(tensor).kind == PlaceholderKind::kDry;
  };
  if (!is_ours(self) && !is_ours(from))
    return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
  return self.layout() == c10::Layout::Strided && from.layout() == c10::Layout::Strided;
}

c10::Allocator* dry_allocator() {
  static auto* const allocator = new DryAllocator();
  return allocator;
}

c10::intrusive_ptr<c10::StorageImpl> make_dry_storage_impl(
    c10::StorageImpl::use_byte_size_t /*in_bytes*/, c10::SymInt size_bytes, c10::DataPtr /*data*/,
    c10::Allocator* /*allocator*/, bool /*resizable*/) {
  const int64_t bytes = size_bytes.expect_int();
  c10::Storage storage = make_dry_storage(static_cast<size_t>(bytes), "a storage");
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim(storage.unsafeReleaseStorageImpl());
}

void DryDeviceGuard::setDevice(c10::Device device) const {
  check_device(device);
}

DryHooks::DryHooks() : default_generator_(at::make_generator<DryGenerator>()) {}

const at::Generator& DryHooks::getDefaultGenerator(c10::DeviceIndex /*index*/) const {
  return default_generator_;
}

at::Generator DryHooks::getNewGenerator(c10::DeviceIndex /*index*/) const {
  return at::make_generator<DryGenerator>();
}

c10::Allocator* DryHooks::getPinnedMemoryAllocator() const {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "[register_device] pinned memory: expected a GPU, got none. "
                              "remat_meta has no transfers that would need it.");
}

void DryHooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t size_bytes) const {
  storage.set_nbytes(size_bytes);
}

}  // namespace remat
