// SPDX-License-Identifier: BSD-3-Clause

// Handling the ops of a SAVE call.
#include "saved_call_ops.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

#include <remat/engine/first_position.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/tape/tape_recorder.h>

namespace remat {
namespace {

/// True if argument `i`, which the op writes, may get a node. Statistics of batch norm never do.
bool may_join_graph(const OpCall& call, size_t i) {
  if (!c10::GradMode::is_enabled() || !call.info().writes_argument(i, /*training=*/false))
    return false;
  bool any = false;
  for_each_argument_tensor(
      call, [&](size_t, const at::Tensor& tensor) { any = any || tensor.requires_grad(); });
  return any;
}

}  // namespace

void SavedCallOps::before_op(const OpCall& call) {
  const OpInfo& info = call.info();
  saves_.before_op();
  running_.op_memory.clear();
  running_.op_runs = true;
  running_.op_makes_part = false;
  if (info.is_communication()) collectives_.before_op(call);
  for (const OpTensor& entry : call.tensors()) {
    const at::Tensor& tensor = *entry.tensor;
    running_.op_memory.add(entry.memory);
    const Origin known = state_.storages.find(entry.memory);
    if (known.is_unknown() || known.is_outside()) outside_.note_captured(tensor, known);
    if (!tensor.has_storage() && !info.reads_data() && !known.is_in_call())
      running_.op_makes_part = true;
    if (call.writes_argument(entry.argument) && entry.memory) {
      const Origin origin = outside_.origin_of(tensor);
      outside_.check_writable(info, tensor, origin);
      if (info.is_communication()) collectives_.note_received(info, tensor, origin);
      note_write(&info, tensor, origin, may_join_graph(call, entry.argument));
    }
  }
}

void SavedCallOps::after_op(const OpCall& call) {
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    const auto* const memory = memory_of(tensor);
    if (!memory || running_.op_memory.contains(memory)) return;
    if (running_.op_makes_part) {
      state_.storages.enter(memory, Origin::inside());  // check_findable() refuses writes.
    } else {
      enter_made(tensor);
    }
  });
  saves_.after_op();
  running_.op_runs = false;
}

// A storage that only `tensor` holds is new, even if its address counts as made inside because the
// region has freed a storage there. In-place ops return storages that others hold, too.
void SavedCallOps::adopt(const at::Tensor& tensor) {
  const void* const memory = memory_of(tensor);
  if (!memory || !tensor.has_storage()) return;
  const Origin origin = state_.storages.find(memory);
  if (origin.is_unknown() || (origin.is_inside() && tensor.storage().use_count() == 1))
    enter_made(tensor);
}

void SavedCallOps::enter_made(const at::Tensor& tensor) {
  state_.storages.enter(memory_of(tensor), Origin::in_call());
  if (tensor.has_storage()) {
    made_.push_back(weak_storage(tensor));
  } else {
    made_opaque_.push_back(tensor);
  }
}

void SavedCallOps::note_write(const OpInfo* op, const at::Tensor& tensor, Origin origin,
                              bool joins_graph) {
  if (origin.is_in_call() || running_.has_written(tensor)) return;
  if (state_.recorder) state_.recorder->before_saved_write(tensor);
  SavedCall::Written written{.tensor = tensor,
                             .origin = origin,
                             .argument = running_.argument_on_storage_of(tensor),
                             .required_grad = tensor.requires_grad()};
  if (!origin.is_outside()) check_findable(op, written);
  keep_before_write(written, joins_graph);
  running_.written_memory.add(memory_of(tensor));
  running_.written.push_back(std::move(written));
}

/// Throws NotImplementedError if a replay could not find the memory of `written`, which is not from
/// outside.
void SavedCallOps::check_findable(const OpInfo* op, const SavedCall::Written& written) const {
  const at::Tensor& tensor = written.tensor;
  TORCH_CHECK_NOT_IMPLEMENTED(
      written.argument != SavedCall::kNone && tensor.has_storage() && !is_of_python_class(tensor),
      "[checkpoint] ", state_.region->label(), ", ", running_.record->call.str(), ", op ",
      op ? op->name() : "that the call runs",
      ": expected to write strided arguments of the call or tensors from outside the region, got "
      "a tensor (",
      TensorMeta(tensor).str(), ") that the function captures and that the region made, or ",
      "memory of a sparse or opaque one, which a replay could not find. Pass it as an argument, "
      "or use the policy RECOMPUTE.");
}

/// Keeps the old value if a replay needs it: that of outside memory that is an argument of the
/// region, was read before, or gets a node by the write, and that of a kept product.
void SavedCallOps::keep_before_write(const SavedCall::Written& written, bool joins_graph) {
  const auto& [tensor, origin, argument, required_grad] = written;
  if (origin.is_outside()) {
    const OutsideStorage& outside = std::as_const(*state_.region).outside()[origin.number()];
    // If all regions keep the call, a replay around a nested region skips it there, so the nested
    // region must not decide by `joins_graph`, which it knows only when the call's ops run.
    const bool is_for_all =
        running_.record->call.keep == Keep::kAllRegions && state_.scope.previous() != nullptr;
    if (outside.is_read() || outside.is_argument() ||
        (joins_graph && !required_grad && !is_for_all)) {
      pending_.settle(tensor);
      outside_.keep_before_write(tensor, origin);
    }
  } else if (origin.is_product()) {
    CallProduct& product = state_.region->calls().product(origin.number());
    if (product.is_kept() && !product.is_copied()) products_.keep_copy(product, tensor);
  }
}

void SavedCallOps::begin_skipped(c10::ArrayRef<at::Tensor> writes,
                                 c10::ArrayRef<at::Tensor> arguments) {
  skipped_.emplace(arguments.begin(), arguments.end());
  for (const at::Tensor& tensor : writes)
    note_write(/*op=*/nullptr, tensor, outside_.origin_of(tensor), /*joins_graph=*/false);
}

void SavedCallOps::end_skipped(c10::ArrayRef<at::Tensor> results) {
  FirstPosition<const void*> given;
  for (const at::Tensor& argument : *skipped_) {
    if (argument.defined()) given.add(memory_of(argument));
  }
  for (const at::Tensor& tensor : results) {
    if (tensor.defined() && memory_of(tensor) && !given.contains(memory_of(tensor)))
      enter_made(tensor);
  }
  forget_skipped();
}

void SavedCallOps::forget_skipped() noexcept {
  if (skipped_) drop_unseen(*std::exchange(skipped_, std::nullopt));
}

std::vector<at::Tensor> SavedCallOps::end_call() noexcept {
  for (auto& storage : made_) {
    const void* const address = storage._unsafe_get_target();
    if (storage.expired()) {
      // Forget the address, because other memory may reuse it.
      state_.storages.enter(address, Origin::unknown());
    } else if (state_.storages.find(address).is_in_call()) {
      made_earlier_.push_back(std::move(storage));
    }
  }
  made_.clear();
  for (const at::Tensor& tensor : made_opaque_) {
    if (state_.storages.find(memory_of(tensor)).is_in_call())
      state_.storages.enter(memory_of(tensor), Origin::inside());
  }
  running_.op_runs = false;
  return std::exchange(made_opaque_, {});
}

}  // namespace remat
