// SPDX-License-Identifier: BSD-3-Clause

// Recording what SAVE calls return and write, and keeping those products that are read.
#include "call_products.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <utility>

#include <remat/engine/current_node.h>
#include <remat/engine/named_calls.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/stream_use.h>
#include <remat/tape/tape_recorder.h>

namespace remat {
namespace {

/// True if autograd knows that a write to one of the tensors is a write to the other.
bool is_view_of(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.is_view() && tensor._base().is_same(other.is_view() ? other._base() : other);
}

}  // namespace

void CallProducts::end_call() {
  const CallSettings& settings = state_.settings;
  auto& [pair, context] = ends_.back();
  pair = UserPair::inside(state_.scope, running_.record->call.keep);
  context = pair                      ? pair.capture_context()
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

/// True if `origin` is that of a result that the running call has made.
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
  // A placeholder cannot stand in for an opaque product, and saves nothing for one without bytes.
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

void CallProducts::before_use(const OpCall& call, size_t argument, const at::Tensor& tensor,
                              Origin origin) {
  const OpInfo& info = call.info();
  if (origin.is_product() && is_parameter(tensor) && is_of_collective(origin.number()))
    outside_.refuse_unshard(info);
  if (!info.reads_data()) return;
  if (origin.is_in_call()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "[checkpoint] ", region_.label(), ", op ", info.name(),
        ": expected tensors that the function makes or that SAVE calls return, got one (",
        TensorMeta(tensor).str(),
        ") that a SAVE call made and handed out in another way, which a replay would not find. "
        "Return it from the call.");
  }
  if (origin.is_outside()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !outside_in_graph_.contains(origin.number()), "[checkpoint] ", region_.label(), ", op ",
        info.name(),
        ": expected to read tensors that a replay can find in the graph, got one from "
        "outside the region (",
        region_.outside()[origin.number()].meta().str(),
        ") into which a SAVE call has written a value with a gradient. Read it in the call, write "
        "a "
        "detached value, or use the policy RECOMPUTE.");
    return read_outside(tensor, origin, &info);
  }
  if (!origin.is_product()) return;
  read(origin.number(), tensor, &info);
  CallProduct& product = region_.calls().product(origin.number());
  if (!product.is_copied() && call.writes_argument(argument)) keep_copy(product, tensor);
}

/// Call it before a tensor from outside is read: keeps what the last SAVE call wrote to the tensor.
void CallProducts::read_outside(const at::Tensor& tensor, Origin origin, const OpInfo* reader) {
  const auto entry = outside_products_.find(origin.number());
  if (entry == outside_products_.end()) return;
  // A shadow begins with the bytes that the region keeps of the tensor, so keep the call's value as
  // these bytes. If the region has kept older bytes, keep the value as a product: a replay that
  // skips the call copies the product into the shadow.
  if (!region_.outside()[origin.number()].is_written()) {
    pending_.settle(tensor);
    outside_.keep_before_write(tensor, origin);
    if (state_.recorder) state_.recorder->values().reset_outside(origin.number());
  } else {
    read(entry->second, tensor, reader);
    region_.outside()[origin.number()].cover_all();  // The product has all bytes.
  }
  outside_products_.erase(entry);
}

std::optional<size_t> CallProducts::product_in(const at::Tensor& tensor) const {
  const void* const memory = memory_of(tensor);
  if (!memory) return std::nullopt;
  const Origin origin = state_.storages.find(memory);
  if (origin.is_product()) return origin.number();
  if (!origin.is_outside()) return std::nullopt;
  const auto written = outside_products_.find(origin.number());
  return written == outside_products_.end() ? std::nullopt : std::optional(written->second);
}

void CallProducts::need(const at::Tensor& tensor) {
  if (state_.is_saving || !memory_of(tensor)) return;
  const Origin origin = state_.storages.find(memory_of(tensor));
  if (origin.is_product()) read(origin.number(), tensor, /*reader=*/nullptr);
  if (origin.is_outside()) read_outside(tensor, origin, /*reader=*/nullptr);
}

void CallProducts::read(size_t number, const at::Tensor& tensor, const OpInfo* reader) {
  CallProduct& product = region_.calls().product(number);
  if (product.is_kept()) return;
  KeepReason reason = reason_for(reader);
  if (reason.kind == KeepReason::Kind::kBareRead) report_implicit(product, reason.reader);
  keep(product, tensor, std::move(reason));
  // Replays copy the value into the memory of the earlier products on the storage, so each of these
  // products needs its memory.
  for (auto base = base_products_.find(number); base != base_products_.end();
       base = base_products_.find(base->second)) {
    CallProduct& before = region_.calls().product(base->second);
    if (before.needs_memory()) break;  // Then all earlier products do, too.
    before.mark_memory_needed();
  }
}

KeepReason CallProducts::reason_for(const OpInfo* reader) const {
  if (!reader) return {.kind = KeepReason::Kind::kNeeded, .reader = {}};
  return {.kind = recomputed_ > 0 ? KeepReason::Kind::kCallRead : KeepReason::Kind::kBareRead,
          .reader = reader->name()};
}

void CallProducts::report_implicit(const CallProduct& product, const std::string& reader) const {
  const bool is_asked_for = region_.calls().records()[product.call()].call.is_op;
  if (state_.settings.implicit_keep == ImplicitKeep::kKeep || is_asked_for) return;
  const std::string text = c10::str(
      state_.where(region_.calls().records()[product.call()].call),
      ": expected no bare op to read its "
      "result (",
      product.meta().str(), ", ", product.size_bytes(), " bytes), got ", reader,
      ", for which it has to be kept. Call recompute_needs_tensor() on it before, put the op in a "
      "named call, or set implicit_keep = kKeep (\"keep\" in Python).");
  TORCH_CHECK(state_.settings.implicit_keep != ImplicitKeep::kError, text);
  TORCH_WARN_ONCE(text);
}

bool CallProducts::is_of_collective(size_t number) const {
  const CallLog& calls = region_.calls();
  return !calls.records()[calls.product(number).call()].call.collective.empty();
}

// The store is for tensors that the region makes and, with offload_inputs, for its arguments.
// Weights stay where they are, and other arguments where the region keeps them. A backward inside
// the call stores nothing, because a tensor that it unpacks may be recomputed, so nobody can tell
// where the tensor came from.
bool CallProducts::may_store(const CallRecord& record, const at::Tensor& tensor) const {
  if (record.call.policy != Policy::kOffload || !has_layout(tensor) || !state_.is_own_code())
    return false;
  if (!running_.is_from_outside(tensor, state_.storages)) return true;
  return state_.settings.offload_inputs && is_stored_argument(tensor);
}

bool CallProducts::is_stored_argument(const at::Tensor& tensor) const {
  const Origin origin = state_.storages.find(memory_of(tensor));
  return origin.is_outside() && region_.outside()[origin.number()].is_argument() &&
         !is_parameter(saved_original(tensor));
}

// Tries in this order: a pair opened in the call, the store, a pair opened in the region, the hooks
// of the options.
UserPair CallProducts::pair_for_saved(const CallRecord& record, const at::Tensor& tensor,
                                      c10::function_ref<bool()> is_opened_in_call) const {
  UserPair pair = UserPair::inside(state_.scope, record.call.keep);
  const bool stores = state_.settings.offload_store && may_store(record, tensor);
  if (stores && pair && !is_opened_in_call()) pair = {};
  return pair ? pair : slots_.pair_of_options(stores);
}

void CallProducts::keep_through_hooks(CallProduct& product, const at::Tensor& tensor,
                                      c10::function_ref<void()> keep) {
  const CallRecord& record = region_.calls().records()[product.call()];
  const auto& [opened, context] = ends_[product.call()];
  const bool stores = state_.settings.offload_store && may_store(record, tensor);
  const UserPair pair = opened && !stores ? opened : slots_.pair_of_options(stores);
  product.set_is_with_user(slots_.gives_to_user(record.call.keep, pair));
  const SavedTensorInfo info{.kind = SavedTensorKind::kSaveOutput,
                             .region = region_.name(),
                             .call = record.call.name,
                             .context = context};
  slots_.keep_through(pair, info, tensor, record.call.keep, keep);
}

void CallProducts::keep(CallProduct& product, const at::Tensor& tensor, KeepReason reason) {
  pending_.settle(tensor);
  keep_through_hooks(product, tensor,
                     [&] { product.keep(tensor, std::move(reason), state_.next_slot()); });
  let_replays_wait(tensor.device(), region_.streams());
}

void CallProducts::keep_copy(CallProduct& product, const at::Tensor& tensor) {
  pending_.settle(tensor);
  keep_through_hooks(product, tensor, [&] { product.keep_copy(tensor); });
  let_replays_wait(tensor.device(), region_.streams());
}

}  // namespace remat
