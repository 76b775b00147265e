// SPDX-License-Identifier: BSD-3-Clause

// Reads of SAVE calls' products, and keeping the products for them.
#include <c10/util/Exception.h>

#include <utility>

#include <remat/tape/stream_use.h>

#include "call_products.h"
#include "saved_original.h"
#include "tape_recorder.h"

namespace remat {

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

/// A tensor from outside is about to be read: keeps what the last SAVE call wrote there.
void CallProducts::read_outside(const at::Tensor& tensor, Origin origin, const OpInfo* reader) {
  const auto entry = outside_products_.find(origin.number());
  if (entry == outside_products_.end()) return;
  // A replay's shadow begins with the kept bytes. If older bytes are kept, the call's value is kept
  // separately and copied to the shadow when the call is skipped.
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
  // A replay copies its value to where the earlier products on that storage were.
  for (auto base = base_products_.find(number); base != base_products_.end();
       base = base_products_.find(base->second)) {
    CallProduct& before = region_.calls().product(base->second);
    if (before.needs_memory()) break;  // Then all earlier ones do, too.
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

// A store is for what the region makes: weights stay where they are, and the region's arguments
// where the region keeps them. In a backward inside the call these cannot be told apart: a tensor
// that it unpacks may have been recomputed.
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

// In order of preference: the store, a pair opened in the region, the hooks of the options.
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
  const CallEnd& end = ends_[product.call()];
  const bool stores = state_.settings.offload_store && may_store(record, tensor);
  const UserPair pair = end.pair && !stores ? end.pair : slots_.pair_of_options(stores);
  product.set_is_with_user(slots_.gives_to_user(record.call.keep, pair));
  const SavedTensorInfo info{.kind = SavedTensorKind::kSaveOutput,
                             .region = region_.name(),
                             .call = record.call.name,
                             .context = end.context};
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
