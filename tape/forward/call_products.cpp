// SPDX-License-Identifier: BSD-3-Clause

// Recording what SAVE calls return and write.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <utility>

#include <remat/tape/current_node.h>
#include <remat/tape/named_calls.h>

#include "call_products.h"
#include "tape_recorder.h"

namespace remat {
namespace {

/// True if autograd knows that a write to one is a write to the other.
bool is_view_of(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.is_view() && tensor._base().is_same(other.is_view() ? other._base() : other);
}

}  // namespace

void CallProducts::end_call() {
  const CallSettings& settings = state_.settings;
  CallEnd& end = ends_.back();
  end.pair = UserPair::inside(state_.scope, running_.record->call.keep);
  end.context = end.pair                  ? end.pair.capture_context()
                : settings.hooks          ? UserHooksScope::capture(*settings.hooks)
                : state_.scope.previous() ? state_.scope.previous()->capture_context()
                                          : std::any();
}

/// Throws if a replay could not replace the call's result.
void CallProducts::check_result(const at::Tensor& tensor, size_t position) const {
  const auto result = [&] {
    return c10::str(state_.where(running_.record->call), ", result ", position, " (",
                    TensorMeta(tensor).str(), "): ");
  };
  TORCH_CHECK_VALUE(
      !tensor.requires_grad() || !tensor.is_leaf() || tensor.is_view(), result(),
      "expected a tensor that the call computes, got a leaf that requires grad: it returned a "
      "leaf tensor that requires grad. Make it outside of the call, or return a computation on "
      "it.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor.key_set().has(c10::DispatchKey::Python), result(),
      "expected a plain tensor, got a subclass with __torch_dispatch__, whose data a replay "
      "cannot stand in for. Use the policy RECOMPUTE.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor.is_inference(), result(),
      "expected a normal tensor, got an inference tensor, which a replay cannot stand in for. "
      "Clone it outside of InferenceMode, or use the policy RECOMPUTE.");
}

/// True if the running call has made a result of that origin.
bool CallProducts::is_made_here(Origin origin) const {
  if (origin.is_in_call() || origin.is_unknown()) return true;
  if (!origin.is_product()) return false;
  const CallLog& calls = region_.calls();
  const CallProduct& product = calls.product(origin.number());
  return !product.is_written() && product.call() + 1 == calls.records().size();
}

CallOutput CallProducts::output_of(const at::Tensor& tensor, size_t position) {
  CallOutput output;
  output.same_as = position;
  if (!tensor.defined()) return output;
  const size_t number = running_.argument_on_storage_of(tensor);
  output.is_argument_itself =
      number != SavedCall::kNone && running_.arguments[number].is_same(tensor);
  if (!output.is_argument_itself) check_result(tensor, position);
  output.requires_grad = tensor.requires_grad();
  output.has_node = will_have_node(tensor);
  if (has_layout(tensor)) output.layout = TensorLayout(tensor);
  const void* const memory = memory_of(tensor);
  const Origin origin = memory ? state_.storages.find(memory) : Origin::in_call();
  if (is_made_here(origin)) {
    output.source = CallOutput::Source::kProduct;
    output.product = product_of(tensor);
    return output;
  }
  output.source = CallOutput::Source::kArgument;
  TORCH_CHECK_NOT_IMPLEMENTED(
      number != SavedCall::kNone, state_.where(running_.record->call), ", result ", position, " (",
      TensorMeta(tensor).str(),
      "): expected a new tensor or a view of an argument, got a view of a tensor that the function "
      "captures, which a replay could not find. Pass that tensor as an argument.");
  output.is_view = is_view_of(tensor, running_.arguments[number]);
  output.view = ArgumentView(number, running_.arguments[number], tensor);
  return output;
}

size_t CallProducts::product_of(const at::Tensor& tensor) {
  const void* const memory = memory_of(tensor);
  const Origin origin = memory ? state_.storages.find(memory) : Origin::unknown();
  if (origin.is_product()) return origin.number();
  CallLog& calls = region_.calls();
  const size_t number = calls.add_product(CallProduct(calls.records().size() - 1, tensor));
  if (memory) state_.storages.enter(memory, Origin::product(number));
  CallProduct& product = calls.product(number);
  // A placeholder cannot replace these: there are no bytes to save, or more than bytes.
  if (product.is_opaque() || product.size_bytes() == 0 || !placeholders_work)
    keep(product, tensor, {.kind = KeepReason::Kind::kNeeded, .reader = {}});
  return number;
}

void CallProducts::add_write(const SavedCall::Written& written) {
  CallLog& calls = region_.calls();
  const size_t number =
      calls.add_product(CallProduct::written(calls.records().size() - 1, written.tensor));
  CallWrite write{.product = number,
                  .is_outside = written.origin.is_outside(),
                  .number = 0,
                  .argument = written.argument,
                  .requires_grad = written.argument != SavedCall::kNone &&
                                   running_.arguments[written.argument].requires_grad()};
  if (write.is_outside) {
    write.number = written.origin.number();
    const OutsideStorage& outside = region_.outside()[write.number];
    const bool has_joined = written.tensor.requires_grad() && !written.required_grad;
    if (has_joined && (written.argument == SavedCall::kNone || !outside.meta().requires_grad()))
      outside_in_graph_.insert(write.number);
    outside_products_[write.number] = number;
    if (state_.recorder) state_.recorder->values().set_outside(write.number, number);
  } else {
    state_.storages.enter(memory_of(written.tensor), Origin::product(number));
    if (written.origin.is_product()) base_products_[number] = written.origin.number();
  }
  running_.record->writes.push_back(write);
}

}  // namespace remat
