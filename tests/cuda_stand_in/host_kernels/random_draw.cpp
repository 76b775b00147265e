// SPDX-License-Identifier: BSD-3-Clause

// Seeds a CPU generator from the state of a CUDA generator.
#include "random_draw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>

namespace cuda_stand_in {
namespace {

at::Generator generator_of(const torch::jit::Stack& arguments) {
  for (const c10::IValue& argument : arguments)
    if (argument.isGenerator() && argument.toGenerator().defined()) return argument.toGenerator();
  return at::globalContext().defaultGenerator(c10::impl::VirtualGuardImpl(at::kCUDA).getDevice());
}

}  // namespace

bool is_generator(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
}

at::Generator host_generator(const torch::jit::Stack& arguments) {
  at::Generator generator = generator_of(arguments);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // spreads seeds that are near each other
  return at::make_generator<at::CPUGeneratorImpl>(generator.current_seed() * kGoldenRatio +
                                                  generator.get_offset());
}

}  // namespace cuda_stand_in
