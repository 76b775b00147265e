// SPDX-License-Identifier: BSD-3-Clause

// Fault injection by a dispatch key in front of all others, and by an allocator.
#include "faults/injector.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include <atomic>
#include <utility>

#include <remat/engine/scope.h>

namespace remat::faults {
namespace {

/// LibTorch has no kernels at this key, and remat uses another one.
constexpr c10::DispatchKey kOpKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

thread_local Injector* injector_of_thread = nullptr;

}  // namespace

/// Marks that an op runs. Ops that it calls have the phase of the outermost op.
class OpScope {
 public:
  explicit OpScope(const c10::OperatorHandle& op) : injector_(injector_of_thread) {
    if (!injector_) return;
    outer_phase_ = injector_->phase_of_op_;
    outer_op_ = injector_->op_;
    injector_->phase_of_op_ = injector_->phase();
    injector_->op_ = op.schema().name().c_str();
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;
  ~OpScope() {
    if (!injector_) return;
    injector_->phase_of_op_ = outer_phase_;
    injector_->op_ = outer_op_;
  }

 private:
  Injector* injector_;
  std::optional<Phase> outer_phase_;
  const char* outer_op_ = nullptr;
};

namespace {

// The key stays included, so that ops that a composite op calls are seen, too.
void count_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpScope scope(op);
  pass_point(Kind::kOp, "before it runs");
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kOpKey);
  op.redispatchBoxed(keys & below, stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&count_op>());
}

std::atomic<int64_t> blocks{0};

class CountingAllocator final : public c10::Allocator {
 public:
  /// Memory that was not allocated needs no deleter.
  c10::DataPtr allocate(size_t bytes) override {
    pass_point(Kind::kAllocation, "an allocation");
    void* const data = c10::alloc_cpu(bytes);
    if (data) ++blocks;
    return {data, data, &free, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free(void* data) {
    if (!data) return;
    --blocks;
    c10::free_cpu(data);
  }
};

const bool kInstalled = [] {
  // Leaked: tensors may outlive all statics.
  c10::SetCPUAllocator(new CountingAllocator, /*priority=*/100);
  return true;
}();

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kReplay:
      return "replay";
    default:
      return "backward";
  }
}

}  // namespace

InjectedError::InjectedError(size_t point, const std::string& where)
    : std::runtime_error(c10::str("injected at point ", point, ", ", where)), point_(point) {}

InjectedOutOfMemory::InjectedOutOfMemory(size_t point)
    : c10::OutOfMemoryError(c10::str("injected at allocation ", point)), point_(point) {}

Injector::Injector(Kind kind, size_t point, std::function<void()> before_throw)
    : kind_(kind), point_(point), before_throw_(std::move(before_throw)), sees_ops_(kOpKey) {
  TORCH_CHECK(!injector_of_thread, "expected no other injector on this thread");
  injector_of_thread = this;
}

Injector::~Injector() {
  injector_of_thread = nullptr;
}

// A replay calls a function with its region's scope open, and runs a tape below autograd. Nodes
// call their ops with neither.
Phase Injector::phase() const {
  if (!in_backward_) return Phase::kForward;
  if (phase_of_op_) return *phase_of_op_;
  const bool below = c10::impl::tls_local_dispatch_key_set().excluded_.has(
      c10::DispatchKey::AutogradFunctionality);
  return below || Scope::current() ? Phase::kReplay : Phase::kBackward;
}

void Injector::pass(const char* name) {
  ++passed_;
  const Phase now = phase();
  ++by_phase_.at(static_cast<size_t>(now));
  if (passed_ != point_) return;
  ++thrown_;
  where_ = c10::str(phase_name(now), ", ", op_ ? op_ : "outside of ops", ", ", name);
  injector_of_thread = nullptr;  // points passed before the throw are not counted
  if (before_throw_) before_throw_();
  injector_of_thread = this;
  if (kind_ == Kind::kAllocation) throw InjectedOutOfMemory(point_);
  throw InjectedError(point_, where_);
}

void pass_point(Kind kind, const char* name) {
  Injector* const injector = injector_of_thread;
  if (injector && injector->kind_ == kind) injector->pass(name);
}

int64_t live_blocks() {
  return blocks;
}

}  // namespace remat::faults
