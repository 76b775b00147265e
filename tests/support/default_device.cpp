// SPDX-License-Identifier: BSD-3-Clause

// Makes CUDA the default device of factories by a kernel in front of each.
//
// The kernels are at BackendSelect, where LibTorch chooses a backend by the device argument. So a
// mode or tracer, which sees the call earlier, records a call without a device, and can make the
// same call again.
#include "default_device.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace remat {
namespace {

using c10::DispatchKey;
using c10::IValue;
using c10::OperatorHandle;

bool is_tensor(const c10::Argument& argument) {
  const c10::Type& type = *argument.type();
  return type.isSubtypeOf(*c10::OptionalType::ofTensor()) ||
         type.isSubtypeOf(*c10::ListType::ofOptionalTensors()) ||
         type.isSubtypeOf(*c10::ListType::ofTensors());
}

std::optional<size_t> position_of(const c10::FunctionSchema& schema, std::string_view name) {
  const auto& arguments = schema.arguments();
  const auto found = std::find_if(arguments.begin(), arguments.end(),
                                  [&](const auto& argument) { return argument.name() == name; });
  if (found == arguments.end()) return std::nullopt;
  return static_cast<size_t>(found - arguments.begin());
}

/// True for an op that makes a tensor on the device of its device argument.
bool is_factory(const OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.operator_name().name != "aten::from_file" &&  // a file is in the host's memory
         op.hasKernelForDispatchKey(DispatchKey::BackendSelect) &&
         position_of(op.schema(), "device") &&
         std::none_of(arguments.begin(), arguments.end(), is_tensor);
}

/// True while a factory without a device makes host memory on this thread, within a kernel of
/// kWithHostMemory.
thread_local bool is_for_host = false;

/// Ops whose kernels read, on the host, the result of a factory that they call without a device.
constexpr const char* kWithHostMemory[] = {"aten::repeat"};

class ForHost {
 public:
  ForHost() : outer_(std::exchange(is_for_host, true)) {}
  ForHost(const ForHost&) = delete;
  ForHost& operator=(const ForHost&) = delete;
  ~ForHost() { is_for_host = outer_; }

 private:
  const bool outer_;
};

/// Runs LibTorch's kernel of an op of kWithHostMemory, with factories on the host.
class WithHostMemory final : public c10::OperatorKernel {
 public:
  void operator()(const OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect);
    const ForHost for_host;
    op.redispatchBoxed(keys & after, stack);
  }
};

/// Passes CUDA as the device of a call that names none, and runs LibTorch's kernel.
class OnCuda final : public c10::OperatorKernel {
 public:
  explicit OnCuda(const OperatorHandle& op)
      : kernel_(op.getComputedKernelForDispatchKey(DispatchKey::BackendSelect)),
        count_(op.schema().arguments().size()),
        device_(*position_of(op.schema(), "device")),
        pin_memory_(position_of(op.schema(), "pin_memory")) {}

  void operator()(const OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t first = stack->size() - count_;
    IValue& device = (*stack)[first + device_];
    const bool is_pinned = pin_memory_ && (*stack)[first + *pin_memory_].isBool() &&
                           (*stack)[first + *pin_memory_].toBool();
    if (device.isNone() && !is_pinned && !is_for_host) device = c10::Device(c10::kCUDA);
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  const c10::SafeKernelFunction kernel_;
  const size_t count_, device_;
  const std::optional<size_t> pin_memory_;
};

/// Silences LibTorch's warning that a kernel is registered over another one.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

void make_cuda_default() {
  // Programs do not link this library, since nothing in them refers to it.
  TORCH_CHECK(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL),
              "[tests] REMAT_TEST_DEVICE=cuda: expected LibTorch's library for CUDA, got: ",
              dlerror(), ". Unset the variable, or use a LibTorch that has CUDA.");
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard silent(&silence);
  // Leaked: kernels may be called until the process ends.
  static auto& handles = *new std::vector<c10::RegistrationHandleRAII>;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const auto put_in_front = [&](const OperatorHandle& op, auto kernel) {
    handles.push_back(
        dispatcher.registerImpl(op.operator_name(), DispatchKey::BackendSelect,
                                c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)),
                                std::nullopt, nullptr, "remat's tests"));
  };
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && is_factory(*op)) put_in_front(*op, std::make_unique<OnCuda>(*op));
  }
  for (const char* const name : kWithHostMemory)
    put_in_front(dispatcher.findSchemaOrThrow(name, ""), std::make_unique<WithHostMemory>());
}

/// Returns the device that REMAT_TEST_DEVICE names; by default the CPU.
c10::DeviceType chosen_device() {
  const char* const variable = std::getenv("REMAT_TEST_DEVICE");
  const std::string_view name = variable ? variable : "";
  TORCH_CHECK_VALUE(name.empty() || name == "cpu" || name == "cuda",
                    "[tests] REMAT_TEST_DEVICE: expected cpu or cuda, got ", name, ".");
  return name == "cuda" ? c10::kCUDA : c10::kCPU;
}

[[maybe_unused]] const bool is_cuda_default = [] {
  const bool is_cuda = chosen_device() == c10::kCUDA;
  if (is_cuda) make_cuda_default();
  return is_cuda;
}();

}  // namespace

c10::Device default_device() {
  return c10::Device(chosen_device());
}

std::string on_default_device(std::string text) {
  if (default_device().is_cpu()) return text;
  constexpr std::string_view kBefore = "on cpu", kAfter = "on cuda:0";
  for (size_t at = text.find(kBefore); at != std::string::npos; at = text.find(kBefore, at))
    text.replace(at, kBefore.size(), kAfter);
  return text;
}

int64_t block_bytes(int64_t bytes) {
  constexpr int64_t kBlock = 512;
  return default_device().is_cpu() ? bytes : (bytes + kBlock - 1) / kBlock * kBlock;
}

}  // namespace remat
