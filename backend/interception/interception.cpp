// SPDX-License-Identifier: BSD-3-Clause

// Registering a kernel in front of each op, and choosing the dispatch keys for it.
#include "interception.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/engine/interception_bits.h>
#include <remat/placeholder/op_facts.h>

#include "intercept_kernel.h"
#include "typed_kernel.h"

namespace remat {
namespace {

using c10::BackendComponent;
using c10::Dispatcher;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::KernelFunction;

constexpr DispatchKey kFactoryKey = DispatchKey::TESTING_ONLY_GenericMode;

/// The functionalities for which the backend gets intercept_fallback().
constexpr DispatchKey kBelowAutograd[] = {DispatchKey::Dense, DispatchKey::Quantized,
                                          DispatchKey::Sparse, DispatchKey::SparseCsr,
                                          DispatchKey::NestedTensor};

/// Collects names of ops that have been registered since the last take(). The listener runs under
/// the dispatcher's lock, so it must not register anything itself.
class NewOps final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    names_.push_back(op.operator_name());
    any_.store(true, std::memory_order_release);
  }
  void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override {}

  bool any() const { return any_.load(std::memory_order_acquire); }

  std::vector<c10::OperatorName> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(names_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<c10::OperatorName> names_;
  std::atomic<bool> any_{false};
};

/// See Note [Where nothing may be thrown].
bool is_size_query(std::string_view op) {
  return op == "aten::_nested_tensor_size" || op == "aten::_nested_tensor_strides" ||
         op == "aten::_nested_tensor_storage_offsets";
}

bool holds_tensors(const c10::Argument& argument) {
  const c10::Type& type = *argument.type();
  return type.isSubtypeOf(*c10::TensorType::get()) ||
         type.isSubtypeOf(*c10::ListType::ofTensors()) ||
         type.isSubtypeOf(*c10::OptionalType::ofTensor()) ||
         type.isSubtypeOf(*c10::ListType::ofOptionalTensors());
}

/// True for an op that returns tensors and takes none.
bool is_factory(const c10::FunctionSchema& schema) {
  const auto none = [](const std::vector<c10::Argument>& all) {
    return std::none_of(all.begin(), all.end(), holds_tensors);
  };
  return none(schema.arguments()) && !none(schema.returns());
}

/// Keys of kernels for tensors that are not dense. Nested tensors have one autograd key for all
/// backends, at which they are not intercepted.
struct OwnKernels {
  DispatchKey functionality, cpu, cuda;
};
constexpr OwnKernels kOwnKernels[] = {
    {DispatchKey::Quantized, DispatchKey::QuantizedCPU, DispatchKey::QuantizedCUDA},
    {DispatchKey::Sparse, DispatchKey::SparseCPU, DispatchKey::SparseCUDA},
    {DispatchKey::SparseCsr, DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrCUDA},
    {DispatchKey::NestedTensor, DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorCUDA},
};

class Interception {
 public:
  Interception() : backend_(choose_backend()) {
    register_fallbacks();
    auto listener = std::make_unique<NewOps>();
    new_ops_ = listener.get();
    handles_.push_back(Dispatcher::singleton().addRegistrationListener(std::move(listener)));
    update();
    set_interception_backend(backend_);
    interception_bits = backend_bit() | DispatchKeySet(kFactoryKey).raw_repr();
  }

  /// Registers a kernel in front of each new op.
  void update() {
    if (!new_ops_->any()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const c10::OperatorName& name : new_ops_->take()) {
      if (!known_.insert(name).second) continue;
      const auto op = Dispatcher::singleton().findOp(name);
      if (op) register_kernels(*op);
    }
  }

 private:
  static BackendComponent choose_backend() {
    const char* const wanted = std::getenv("REMAT_DISPATCH_KEY");
    const std::string_view key = wanted ? wanted : "";
    TORCH_CHECK_VALUE(
        key.empty() || key == "PrivateUse1" || key == "PrivateUse3",
        "[interception] REMAT_DISPATCH_KEY: expected PrivateUse1 or PrivateUse3, got ", key,
        ". Unset it to let remat choose.");
    if (key != "PrivateUse1") return BackendComponent::PrivateUse3Bit;
    TORCH_CHECK(!c10::is_privateuse1_backend_registered(),
                "[interception] REMAT_DISPATCH_KEY: expected that nobody has PrivateUse1, got the "
                "device '",
                c10::get_privateuse1_backend(), "', which does. Unset it.");
    return BackendComponent::PrivateUse1Bit;
  }

  DispatchKey key(DispatchKey functionality) const {
    return c10::toRuntimePerBackendFunctionalityKey(functionality, backend_);
  }

  uint64_t backend_bit() const { return uint64_t{1} << (static_cast<unsigned>(backend_) - 1U); }

  // If another library uses this backend, LibTorch refuses the second fallback and names both.
  void register_fallbacks() {
    for (const DispatchKey functionality : kBelowAutograd) {
      keep(Dispatcher::singleton().registerFallback(
          key(functionality), KernelFunction::makeFromBoxedFunction<&intercept_fallback>(),
          "remat"));
    }
    keep(Dispatcher::singleton().registerFallback(kFactoryKey, KernelFunction::makeFallthrough(),
                                                  "remat"));
  }

  void register_kernels(const c10::OperatorHandle& op) {
    if (is_factory(op.schema())) return register_factory(op);
    if (is_size_query(op.operator_name().name)) return register_size_query(op);
    if (op_facts(op.operator_name()).has(OpFact::kWritesNoData)) return register_note(op);
    put(op, key(DispatchKey::AutogradFunctionality), make_intercept_kernel(op));
    if (op.schema().argumentIndexWithName("running_mean")) register_statistics(op);
    // Without a kernel here, LibTorch's composite kernel would win over the fallback, and compute
    // other bits than the backend's own kernel.
    if (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
        op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      put(op, key(DispatchKey::Dense),
          KernelFunction::makeFromBoxedFunctor(
              std::make_unique<InterceptKernel>(op, InterceptKernel::Level::kBackend)));
    }
    // Other layouts and quantized tensors need a kernel for the same reason.
    for (const OwnKernels& kernels : kOwnKernels) {
      if (op.hasKernelForDispatchKey(kernels.cpu) || op.hasKernelForDispatchKey(kernels.cuda))
        put(op, key(kernels.functionality),
            KernelFunction::makeFromBoxedFunction<&intercept_fallback>());
    }
  }

  // See Note [Plain writes].
  void register_statistics(const c10::OperatorHandle& op) {
    const bool hides_writes = OpInfo(op).writes() && !op.schema().is_mutable();
    if (!hides_writes) return;
    put(op, DispatchKey::ADInplaceOrView,
        KernelFunction::makeFromBoxedFunction<&intercept_plain_write>());
  }

  // See Note [Factories].
  void register_factory(const c10::OperatorHandle& op) {
    put(op, kFactoryKey, KernelFunction::makeFromBoxedFunction<&intercept_factory>());
  }

  void register_size_query(const c10::OperatorHandle& op) {
    for (const DispatchKey functionality :
         {DispatchKey::AutogradFunctionality, DispatchKey::NestedTensor}) {
      put(op, key(functionality), KernelFunction::makeFromBoxedFunction<&intercept_size_query>());
    }
  }

  void register_note(const c10::OperatorHandle& op) {
    for (const DispatchKey functionality :
         {DispatchKey::AutogradFunctionality, DispatchKey::Dense}) {
      put(op, key(functionality), KernelFunction::makeFromBoxedFunction<&intercept_note>());
    }
  }

  void put(const c10::OperatorHandle& op, DispatchKey where, KernelFunction kernel) {
    keep(Dispatcher::singleton().registerImpl(op.operator_name(), where, std::move(kernel),
                                              std::nullopt, nullptr, "remat"));
  }

  void keep(c10::RegistrationHandleRAII handle) { handles_.push_back(std::move(handle)); }

  const BackendComponent backend_;
  NewOps* new_ops_;  // Owned by the dispatcher.
  std::mutex mutex_;
  std::unordered_set<c10::OperatorName> known_;  // Guarded by mutex_, like handles_.
  std::vector<c10::RegistrationHandleRAII> handles_;
};

}  // namespace

// Note [Factories]: factories have no tensor to be dispatched on, and torch:: functions exclude
// autograd's keys around factories. But the thread's included keys can divert a factory to
// TESTING_ONLY_GenericMode, a key on which LibTorch registers nothing. By remat's kernel there a
// region knows which tensors it makes itself.

void install_interception() {
  // Leaked, because kernels may be called until the process ends.
  static Interception& interception = *new Interception;
  interception.update();
}

}  // namespace remat
