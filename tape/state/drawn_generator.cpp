// SPDX-License-Identifier: BSD-3-Clause

// Finding an op's generator among its arguments.
#include "drawn_generator.h"

#include <ATen/Context.h>

#include <optional>

#include <remat/tape/generator_state.h>

namespace remat {
namespace {

c10::Device device_of(const OpCall& call) {
  std::optional<c10::Device> device;
  for (size_t i = 0; i < call.info().argument_count() && !device; ++i) {
    const c10::IValue& value = call.argument(i);
    for_each_tensor(value, [&](const at::Tensor& tensor) { device = tensor.device(); });
    if (!device && value.isDevice()) device = value.toDevice();
  }
  return device.value_or(c10::Device(c10::kCPU));
}

}  // namespace

at::Generator generator_of(const OpCall& call) {
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    const c10::IValue& value = call.argument(i);
    if (value.isGenerator() && value.toGenerator().defined()) return value.toGenerator();
  }
  const c10::Device device = device_of(call);
  if (!device.is_cpu() && !device.is_cuda()) return {};
  return at::globalContext().defaultGenerator(device);
}

uint64_t draw_position(const OpCall& call) {
  const at::Generator generator = generator_of(call);
  return generator.defined() ? position_of(generator) : 0;
}

}  // namespace remat
