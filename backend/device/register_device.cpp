// SPDX-License-Identifier: BSD-3-Clause

// Claiming PrivateUse1 for remat_meta, if it is unused.
#include <remat/backend/register_device.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <string_view>
#include <typeinfo>

#include <remat/placeholder/dry_device.h>

#include "dry_autocast.h"
#include "private_use_fallback.h"
#include "saved_tensor_engine.h"

namespace remat {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr std::string_view kName = "remat_meta";

template <class... Owner>
[[noreturn]] void throw_taken(const Owner&... owner) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[register_device] PrivateUse1: expected it unused, got ", owner...,
      ". LibTorch has one such device in a process: leave the other library out, or do without "
      "remat_meta; checkpoints do not need it.");
}

template <class Interface>
std::string class_of(const Interface& object) {
  return c10::demangle(typeid(object).name());
}

void check_unused() {
  if (c10::is_privateuse1_backend_registered())
    throw_taken("the device name '", c10::get_privateuse1_backend(), "' on it");
  if (at::isPrivateUse1HooksRegistered())
    throw_taken("hooks of class ", class_of(at::detail::getPrivateUse1Hooks()));
  if (c10::impl::hasDeviceGuardImpl(kDevice))
    throw_taken("a device guard of class ", class_of(*c10::impl::getDeviceGuardImpl(kDevice)));
  if (c10::GetStorageImplCreate(kDevice)) throw_taken("storages of another library");
  const auto empty = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format");
  if (empty.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
    throw_taken("this kernel for aten::empty: ", empty.dumpState());
}

// See Note [The accelerator].
void check_no_accelerator() {
  const std::optional<c10::DeviceType> accelerator = at::getAccelerator(/*checked=*/false);
  if (!accelerator) return;
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(*accelerator);
  const int count = hooks.deviceCount();
  TORCH_CHECK_NOT_IMPLEMENTED(
      count == 0, "[register_device] device: expected a process without another accelerator, got ",
      count, " of ", c10::DeviceTypeName(*accelerator, /*lower_case=*/true),
      ". LibTorch has one accelerator in a process. It would be remat_meta from here on, and each "
      "backward on the other would end in an internal error of LibTorch. Use remat_meta in a "
      "process that sees no GPU (CUDA_VISIBLE_DEVICES= in its environment), or do without it; "
      "checkpoints do not need it.");
}

/// Permanently registers the factories and the allocator of dry tensors.
void register_dry_factories() {
  c10::SetAllocator(kDevice, dry_allocator());
  c10::SetStorageImplCreate(kDevice, &make_dry_storage_impl);
  torch::Library& library = keep_library("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library.impl("empty.memory_format", &dry_empty);
  library.impl("empty_strided", &dry_empty_strided);
  library.impl("_has_compatible_shallow_copy_type", &has_dry_compatible_shallow_copy_type);
}

void register_once() {
  check_unused();
  check_no_accelerator();
  install_private_use_fallback();
  // Leaked, because LibTorch keeps pointers to both objects until the process ends.
  c10::impl::registerDeviceGuard(kDevice, new DryDeviceGuard());
  at::RegisterPrivateUse1HooksInterface(new DryHooks());
  register_dry_factories();
  register_dry_autocast();
  c10::register_privateuse1_backend(std::string(kName));
  // The engine also runs a backward of dry tensors on the thread that starts the backward.
  SavedTensorEngine::install();
}

}  // namespace

void register_device() {
  static std::mutex mutex;
  static bool registered = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (registered) return;
  register_once();
  registered = true;
}

}  // namespace remat
