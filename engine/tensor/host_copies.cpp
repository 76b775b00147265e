// SPDX-License-Identifier: BSD-3-Clause

// Detecting device-to-host copies, and waiting for them.
#include <remat/engine/host_copies.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include <remat/engine/blocking_wait.h>

namespace remat {
namespace {

/// True if the op writes host memory: by its device argument or, if it has none, by the tensors
/// that it writes.
bool writes_host(const OpCall& call) {
  bool writes = false;
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    if (call.argument(i).isDevice()) return call.argument(i).toDevice().is_cpu();
  }
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    writes = writes || (call.writes_argument(i) && tensor.is_cpu());
  });
  return writes;
}

}  // namespace

size_t non_blocking_argument(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto found = std::find_if(arguments.begin(), arguments.end(), [](const auto& argument) {
    return argument.name() == "non_blocking";
  });
  return static_cast<size_t>(found - arguments.begin());
}

HostCopy::HostCopy(const OpCall& call, size_t non_blocking) {
  if (non_blocking >= call.info().argument_count()) return;
  const c10::IValue& told = call.argument(non_blocking);
  if (!told.isBool() || !told.toBool() || !writes_host(call)) return;
  for_each_argument_tensor(call, [&](size_t, const at::Tensor& tensor) {
    if (!tensor.is_cpu() && !tensor.is_meta()) devices_.push_back(tensor.device());
  });
}

void HostCopy::wait() const {
  for (const c10::Device& device : devices_) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    blocking_wait([&] { guard.synchronizeStream(guard.getStream(device)); });
  }
}

}  // namespace remat
