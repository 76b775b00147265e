// SPDX-License-Identifier: BSD-3-Clause

// Puts host kernels at the CUDA key. The runtime calls this before LibTorch calls any op on CUDA.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <memory>
#include <vector>

#include "host_kernel.h"
#include "op_choice.h"

namespace cuda_stand_in {
namespace {

// Silences the warning that registering over a kernel gives, once per op.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// Switches off libraries and fused kernels that the stand-in cannot compute.
void switch_off_absent_libraries() {
  at::Context& context = at::globalContext();
  context.setUserEnabledCuDNN(false);
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
}

bool has_cuda_kernels() {
  const auto fill = c10::Dispatcher::singleton().findSchema({"aten::fill_", "Scalar"});
  return fill && fill->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

int register_kernels() {
  // Leaked: kernels may be called until the process ends.
  static auto& handles = *new std::vector<c10::RegistrationHandleRAII>;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const Kind kind = kind_of(*op);
    if (kind == Kind::kNone) continue;
    auto kernel = std::make_unique<HostKernel>(*op, kind);
    handles.push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)),
        std::nullopt, nullptr, "CUDA stand-in"));
  }
  return static_cast<int>(handles.size());
}

}  // namespace
}  // namespace cuda_stand_in

/// Returns how many ops have a host kernel: 0 if LibTorch has no kernels for CUDA yet.
extern "C" __attribute__((visibility("default"))) int cuda_stand_in_install_kernels() {
  using namespace cuda_stand_in;
  if (!has_cuda_kernels()) return 0;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard silent(&silence);
  switch_off_absent_libraries();
  return register_kernels();
}
