// SPDX-License-Identifier: BSD-3-Clause

// remat's table of VariableHooks, installed in front of LibTorch's table.
#include <remat/engine/data_hooks.h>
#include <remat/engine/op_observer.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <remat/engine/current_node.h>
#include <remat/engine/interception_bits.h>
#include <remat/engine/region.h>
#include <remat/engine/result_aliases.h>
#include <remat/engine/scope.h>
#include <remat/engine/storage_table.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/torch_compat.h>

#include <remat/engine/unseen.h>
#include "storage_bits.h"

namespace remat {
namespace {

using at::TensorBase;
using at::impl::VariableHooksInterface;

StorageBits other_versions;

void note_memory(const at::Tensor& tensor) {
  if (memory_of(tensor)) note_other_versions(tensor.storage().unsafeGetStorageImpl());
}

/// True if both tensors have the same memory and layout. Then `tensor.data = other` changes
/// nothing: the last step of `w.data *= 2` assigns to w the memory that w has.
bool is_alike(const at::Tensor& tensor, const at::Tensor& other) {
  return has_layout(tensor) && has_layout(other) && memory_of(tensor) == memory_of(other) &&
         TensorLayout(tensor) == TensorLayout(other);
}

bool is_result(const at::Tensor& tensor) {
  if (C10_LIKELY(!may_be_result(tensor))) return false;
  const c10::VariableVersion& versions = tensor.unsafeGetTensorImpl()->version_counter();
  const auto regions = live_regions();
  return std::any_of(regions.begin(), regions.end(),
                     [&](const auto& region) { return region->has_result(versions); });
}

class DataHooks final : public VariableHooksInterface {
 public:
  explicit DataHooks(const VariableHooksInterface& of_libtorch) : next_(of_libtorch) {}

  TensorBase variable_data(const TensorBase& self) const override {
    TensorBase data = next_.variable_data(self);
    note_data(self);
    return data;
  }
  TensorBase data(const TensorBase& self) const override {
    TensorBase data = next_.data(self);
    note_data(self);
    return data;
  }
  void set_data(const TensorBase& self, const TensorBase& data) const override {
    const at::Tensor tensor(self);
    const at::Tensor other(data);
    const bool exchanges = tensor.defined() && other.defined() && !is_alike(tensor, other);
    if (exchanges && interception_is_on()) OpObserver::all_before_set_data(tensor);
    const bool has_memory = exchanges && (has_layout(tensor) || has_layout(other));
    const bool has_versions = has_memory && !tensor.is_inference();
    next_.set_data(self, data);
    if (has_versions) note_exchange(tensor);
    if (other.defined()) note_data(other);
  }

  TensorBase tensor_data(const TensorBase& self) const override { return next_.tensor_data(self); }
  // See Note [The op that makes a node].
  const NodePtr& grad_fn(const TensorBase& self) const override {
    const bool is_stale = self.defined() && is_stale_view(self);
    if (C10_LIKELY(!is_stale || !interception_is_on())) return next_.grad_fn(self);
    const InterceptionOff off;
    return next_.grad_fn(self);
  }
  unsigned _register_hook(const TensorBase& self,
                          std::function<TensorBase(const TensorBase&)> hook) const override {
    return next_._register_hook(self, std::move(hook));
  }
  void remove_hook(const TensorBase& self, unsigned position) const override {
    next_.remove_hook(self, position);
  }
  bool is_view(const TensorBase& self) const override { return next_.is_view(self); }
  const TensorBase& base(const TensorBase& self) const override { return next_.base(self); }
  const std::string& name(const TensorBase& self) const override { return next_.name(self); }
  bool is_leaf(const TensorBase& self) const override { return next_.is_leaf(self); }
  int64_t output_nr(const TensorBase& self) const override { return next_.output_nr(self); }
  int64_t _version(const TensorBase& self) const override { return next_._version(self); }
  void retain_grad(const TensorBase& self) const override { next_.retain_grad(self); }
  bool retains_grad(const TensorBase& self) const override { return next_.retains_grad(self); }
  void _backward(const at::Tensor& self, at::TensorList inputs,
                 const std::optional<at::Tensor>& gradient, std::optional<bool> keep_graph,
                 bool create_graph) const override {
    next_._backward(self, inputs, gradient, keep_graph, create_graph);
  }
  void requires_grad_(const TensorBase& self, bool value) const override {
    next_.requires_grad_(self, value);
  }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op,
                                               c10::DispatchKeySet keys,
                                               torch::jit::Stack* stack) const override {
    next_.basic_autograd_not_implemented_fallback(op, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const TensorBase& self) const override {
    return next_.grad_dtype(self);
  }
  void set_grad_dtype(const TensorBase& self,
                      const std::optional<c10::ScalarType>& dtype) const override {
    next_.set_grad_dtype(self, dtype);
  }

 private:
  static void note_data(const TensorBase& self) {
    const at::Tensor tensor(self);
    note_memory(tensor);
    if (is_result(tensor)) before_result_alias(tensor);
    if (interception_is_on()) OpObserver::all_after_data(tensor);
  }

  const VariableHooksInterface& next_;
};

}  // namespace

void install_data_hooks() {
  static const DataHooks* const hooks = [] {
    auto* const made = new DataHooks(libtorch_variable_hooks());
    at::impl::SetVariableHooks(made);  // Never destroyed: tensors may outlive static objects.
    return made;
  }();
  static_cast<void>(hooks);
}

void note_other_versions(const c10::StorageImpl* storage) noexcept {
  other_versions.add(storage);
}

bool may_have_other_versions(const c10::StorageImpl* storage) noexcept {
  return other_versions.may_have(storage);
}

}  // namespace remat
