// SPDX-License-Identifier: BSD-3-Clause

// An op call on its way through the dispatcher, as scopes see it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <remat/engine/export.h>
#include <remat/placeholder/op_facts.h>

namespace remat {

/// Facts about an op, found once per process from its schema and its name.
class REMAT_API OpInfo {
 public:
  explicit OpInfo(const c10::OperatorHandle& op);

  /// False if the op was deregistered and defined again with another number of arguments or
  /// results.
  bool describes(const c10::OperatorHandle& op) const {
    return argument_count_ == op.schema().arguments().size() &&
           return_count_ == op.schema().returns().size();
  }

  /// "aten::add.Tensor"
  std::string name() const;
  /// std::hash of name().
  size_t name_hash() const { return name_hash_; }
  const c10::OperatorName& operator_name() const { return op_.operator_name(); }
  const c10::OperatorHandle& op() const { return op_; }

  /// Facts known by the op's name rather than its schema.
  OpFacts facts() const { return facts_; }

  size_t argument_count() const { return argument_count_; }
  size_t return_count() const { return return_count_; }

  /// False for ops that look at metadata only, such as views, zeros_like and new_empty.
  bool reads_data() const { return reads_data_; }

  /// False for ops that only look at sizes and strides, and so may run on a tensor whose storage
  /// has been freed.
  bool needs_memory() const { return needs_memory_; }

  /// True if the op returns a view of an argument.
  bool is_view() const { return is_view_; }

  /// True if the op returns an object of a custom class (packed weights).
  bool makes_objects() const { return makes_objects_; }

  /// True for a view op of LibTorch whose only tensor argument is the first.
  bool is_plain_view() const { return is_plain_view_; }

  /// True if LibTorch tags the op as pointwise.
  bool is_pointwise() const { return is_pointwise_; }

  /// True for every op that is not LibTorch's own, and for ops whose name says that they are matrix
  /// products, convolutions, recurrent networks or attention, or may be built from those.
  bool may_multiply_matrices() const { return may_multiply_matrices_; }

  bool writes() const { return written_ != 0 || hidden_writes_ != 0; }

  /// True if a call may write argument `i`; `training` is the value of the op's argument
  /// "training".
  bool writes_argument(size_t i, bool training) const {
    const uint64_t bit = i < 64 ? uint64_t{1} << i : 0;
    return (written_ & bit) != 0 || (training && (hidden_writes_ & bit) != 0);
  }

  /// Position of the bool argument "training"; argument_count() if there is none.
  size_t training_argument() const { return training_argument_; }

  /// True for ops that change an argument's sizes, strides or storage in place: t_, resize_, set_.
  bool changes_metadata() const { return changes_metadata_; }

  /// True for set_() and the unsafe views: they can leave a tensor that shares memory with an
  /// argument but has a version counter of its own, without saying so in the schema.
  bool gives_other_versions() const { return facts_.has(OpFact::kOtherVersions); }

  /// True for _to_copy and the composite to.dtype, casts whose results autocast may take from its
  /// cache.
  bool is_cast() const { return is_cast_; }

  /// True for lift_fresh, whose argument LibTorch makes from a Python or C++ number without an op.
  bool is_lift() const { return is_lift_; }

  /// True for ops that LibTorch tags as drawing random numbers (nondeterministic_seeded).
  bool may_draw() const { return may_draw_; }

  /// Position of the argument "dropout_p" of attention ops, which draw nothing if it is 0;
  /// argument_count() if there is none.
  size_t dropout_argument() const { return dropout_argument_; }

  /// True for empty() and similar factories, whose result has no values yet.
  bool is_uninitialised() const { return facts_.has(OpFact::kUninitialised); }

  /// True for ops that are not LibTorch's own; only the schema of such an op is known.
  bool is_of_library() const { return is_of_library_; }

  /// True for collectives, sends and receives, in which other processes take part.
  bool is_communication() const { return is_communication_; }

  /// True for the ops with which FSDP gathers the weights of a sharded module.
  bool is_unshard() const { return is_unshard_; }

 private:
  c10::OperatorHandle op_;
  size_t name_hash_;
  OpFacts facts_;
  size_t argument_count_;
  size_t return_count_;
  size_t training_argument_;
  size_t dropout_argument_;
  uint64_t written_ = 0;        // bit i: the schema marks argument i as written
  uint64_t hidden_writes_ = 0;  // bit i: argument i is written in training, unmarked in the schema
  bool reads_data_;
  bool needs_memory_;
  bool changes_metadata_;
  bool is_cast_;
  bool is_lift_;
  bool may_draw_;
  bool is_of_library_;
  bool is_communication_;
  bool is_unshard_;
  bool is_view_;
  bool is_plain_view_;
  bool makes_objects_;
  bool is_pointwise_;
  bool may_multiply_matrices_;
};

/// Identifies a tensor's memory: its storage, or the tensor itself if it has none (sparse, opaque,
/// wrapped by a functorch transform). Null if the storage has no bytes, or if LibTorch made the
/// tensor from a number.
inline const void* memory_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (impl->is_wrapped_number()) return nullptr;
  const c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(!storage)) return impl->has_storage() ? nullptr : impl;
  return storage->nbytes() > 0 ? storage : nullptr;
}

/// A defined tensor among the arguments of a call.
struct OpTensor {
  size_t argument;  ///< Position of the argument that is the tensor or contains it
  const at::Tensor* tensor;
  const void* memory;  ///< memory_of() the tensor
};

/// A call of an op: its arguments are on the stack before it runs, its results after.
class REMAT_API OpCall {
 public:
  OpCall(const OpInfo& info, torch::jit::Stack& stack) : info_(&info), stack_(&stack) {}

  const OpInfo& info() const { return *info_; }

  /// Valid only before the op runs.
  c10::IValue& argument(size_t i) const {
    return (*stack_)[stack_->size() - info_->argument_count() + i];
  }

  /// The defined tensors among the arguments in order, collected at the first call. Valid only
  /// before the op runs.
  c10::ArrayRef<OpTensor> tensors() const {
    if (!is_collected_) collect();
    return tensors_;
  }

  /// Collects tensors() again, after arguments have been replaced.
  void collect() const;

  /// Valid only after the op has run.
  c10::IValue& result(size_t i) const {
    return (*stack_)[stack_->size() - info_->return_count() + i];
  }

  /// True if this call may write argument `i`.
  bool writes_argument(size_t i) const {
    return info_->writes() && info_->writes_argument(i, training());
  }

  /// True if this call may draw random numbers.
  bool may_draw() const {
    if (C10_LIKELY(!info_->may_draw())) return false;
    const size_t i = info_->dropout_argument();
    return i == info_->argument_count() || !argument(i).isDouble() || argument(i).toDouble() != 0;
  }

  /// The value of the argument "training"; true if the op has none.
  bool training() const {
    const size_t i = info_->training_argument();
    return i == info_->argument_count() || !argument(i).isBool() || argument(i).toBool();
  }

 private:
  const OpInfo* info_;
  torch::jit::Stack* stack_;
  mutable c10::SmallVector<OpTensor, 6> tensors_;
  mutable bool is_collected_ = false;
};

/// True for a non-empty list of lists of tensors, such as collectives take and return.
inline bool is_list_of_tensor_lists(const c10::IValue& value) {
  return value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensorList();
}

/// Calls f(tensor) for each defined tensor in `value`: a tensor, a list of (optional) tensors, or a
/// list of such lists.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) f(tensor);
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) f(element.toTensor());
    }
  } else if (is_list_of_tensor_lists(value)) {
    for (const c10::IValue& list : value.toListRef()) {
      for (const c10::IValue& element : list.toListRef()) {
        if (element.toTensor().defined()) f(element.toTensor());
      }
    }
  }
}

/// Calls on_value(i, value) for each argument of `call` that is not a defined tensor, and
/// on_tensor(i, tensor) for each defined tensor of argument i, in order. For a list of tensors,
/// on_value() is called with the list first.
template <class OnTensor, class OnValue>
void visit_arguments(const OpCall& call, OnTensor&& on_tensor, OnValue&& on_value) {
  const c10::ArrayRef<OpTensor> tensors = call.tensors();
  const OpTensor* next = tensors.begin();
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    const c10::IValue& value = call.argument(i);
    if (!value.isTensor() || !value.toTensor().defined()) on_value(i, value);
    for (; next != tensors.end() && next->argument == i; ++next) on_tensor(i, *next->tensor);
  }
}

/// Calls on_tensor(i, tensor) for each defined tensor of argument i, in order.
template <class OnTensor>
void for_each_argument_tensor(const OpCall& call, OnTensor&& on_tensor) {
  for (const OpTensor& entry : call.tensors()) on_tensor(entry.argument, *entry.tensor);
}

/// Calls f(tensor) for each defined tensor that `call` has returned.
template <class F>
void for_each_result_tensor(const OpCall& call, F&& f) {
  for (size_t i = 0; i < call.info().return_count(); ++i) for_each_tensor(call.result(i), f);
}

/// Replaces each defined tensor in `value` by f(tensor).
template <class F>
void transform_tensors(c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = f(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? f(tensor) : tensor);
    }
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      list.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(f(*tensor)) : tensor);
    }
    value = std::move(list);
  } else if (is_list_of_tensor_lists(value)) {
    c10::List<c10::List<at::Tensor>> lists;
    for (const c10::IValue& inner : value.toListRef()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : inner.toTensorVector())
        list.push_back(tensor.defined() ? f(tensor) : tensor);
      lists.push_back(std::move(list));
    }
    value = std::move(lists);
  }
}

/// True for a tensor subclass with __torch_dispatch__. Only the class knows the tensor's memory.
inline bool is_of_python_class(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python);
}

/// True if an argument is a tensor subclass, whose __torch_dispatch__ handles the call.
inline bool is_of_python_class(const OpCall& call) {
  const c10::ArrayRef<OpTensor> tensors = call.tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const OpTensor& entry) { return is_of_python_class(*entry.tensor); });
}

/// True if a call of `info` may read the values of its argument `tensor`. For a tensor subclass
/// even an apparent view may compute: F.linear(x, quantized) calls aten::t(quantized), which may
/// return a new, dequantized matrix.
inline bool reads_data(const OpInfo& info, const at::Tensor& tensor) {
  return info.reads_data() || is_of_python_class(tensor);
}

}  // namespace remat
