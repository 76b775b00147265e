// SPDX-License-Identifier: BSD-3-Clause

// Putting kept values or placeholders in place of SAVE calls' results.
#include "replay_products.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <utility>

#include <remat/engine/hidden_scopes.h>
#include <remat/engine/op_observer.h>
#include <remat/placeholder/placeholder_impl.h>

#include <remat/engine/storage_bytes.h>
#include <remat/engine/unseen.h>
#include "replay_memory.h"

namespace remat {

ReplayProducts::ReplayProducts(const Region& region, StorageTable& storages)
    : region_(region), storages_(storages), products_(region.calls().products().size()) {
  if (products_.empty()) return;
  const std::vector<CallProduct::Held> held = region.kept_products();
  for (const auto i : c10::irange(products_.size())) {
    const CallProduct& product = region.calls().product(i);
    if (!held[i] || (region.early_stop() && product.reader_slot() >= region.live_end())) continue;
    if (product.is_with_user()) {
      products_[i].held = held[i];
      if (!state_before_) state_before_.emplace();
    } else {
      products_[i].value = unpack(i, held[i]);
    }
  }
}

at::Tensor ReplayProducts::unpack(size_t number, const CallProduct::Held& held) const {
  const auto where = [&] {
    return c10::str("[replay] ", region_.label(), ", ", call_of(number).str());
  };
  try {
    return region_.calls().product(number).unpack(held, where);
  } catch (c10::OutOfMemoryError&) {
    throw;
  } catch (c10::Error& error) {
    error.add_context(c10::str(where(), ": raised when its result was brought back"));
    throw;
  }
}

// Note [What the user has]: code that keeps products of SAVE calls elsewhere (hooks, a store) may
// bring back all of a region's products at once, at the top of the function: `if (is_recomputing())
// ...`. So that code is called when the replay leaves the SAVE call out, not before the function is
// entered. The code runs under the thread state from before the replay, not under the function's
// grad mode, autocast and dispatch modes.
const at::Tensor& ReplayProducts::value_of(size_t number) {
  Product& product = products_[number];
  if (const CallProduct::Held held = std::exchange(product.held, nullptr)) {
    const at::ThreadLocalStateGuard before(*state_before_);
    const SuspendScopes suspend;
    product.value = unpack(number, held);
  }
  return product.value;
}

const NamedCall& ReplayProducts::call_of(size_t number) const {
  return region_.calls().records()[region_.calls().product(number).call()].call;
}

/// Returns the kept value's storage. If no value is kept, returns uninitialised memory if a later
/// call's value goes there, else a placeholder.
c10::Storage ReplayProducts::storage_in_place_of(size_t number) {
  if (const at::Tensor& value = value_of(number); value.defined()) return value.storage();
  const CallProduct& record = region_.calls().product(number);
  if (record.needs_memory()) {
    products_[number].unreadable = true;
    return empty_storage(record.size_bytes(), record.device());
  }
  const NamedCall& call = call_of(number);
  return c10::Storage(
      c10::make_intrusive<PlaceholderStorage>(record.size_bytes(), record.device(),
                                              PlaceholderInfo{.kind = PlaceholderKind::kResult,
                                                              .region = region_.label(),
                                                              .call = call.name,
                                                              .op = policy_name(call.policy)}));
}

at::Tensor ReplayProducts::on_product(size_t number, const TensorLayout& layout) {
  const CallProduct& record = region_.calls().product(number);
  Product& product = products_[number];
  if (record.is_opaque()) {
    at::Tensor value = tensor_data(value_of(number));
    storages_.enter(memory_of(value), Origin::product(number));
    opaque_.push_back(value);
    return value;
  }
  if (!product.storage) {
    product.storage = storage_in_place_of(number);
    storages_.enter(product.storage.unsafeGetStorageImpl(), Origin::product(number));
    // If this replay runs inside another region's function, the result counts as made there, too,
    // unless it is on the forward's storage.
    if (record.storage().address() != product.storage.unsafeGetStorageImpl())
      OpObserver::all_adopt(lay_out(product.storage, layout));
  }
  return lay_out(product.storage, layout);
}

void ReplayProducts::put_inside(const c10::Storage& storage, size_t number) {
  storages_.enter(storage.unsafeGetStorageImpl(), Origin::product(number));
  products_[number].storage = storage;
  if (const at::Tensor& value = value_of(number); value.defined()) {
    copy_bytes(value.storage(), storage);
  } else {
    products_[number].unreadable = !PlaceholderStorage::is(storage);
  }
}

void ReplayProducts::check(const OpCall& call, size_t slot) const {
  if (!call.info().reads_data()) return;
  for (const OpTensor& entry : call.tensors()) {
    const Origin origin = storages_.find(entry.memory);
    if (origin.is_product()) check_argument(call, entry.argument, origin.number(), slot);
  }
}

void ReplayProducts::check_argument(const OpCall& call, size_t argument, size_t number,
                                    size_t slot) const {
  const Product& product = products_[number];
  const auto where = [&] { return at_slot(region_, slot) + ", op " + call.info().name(); };
  TORCH_CHECK(!product.unreadable, where(),
              ": expected ops that "
              "the forward called, got one that reads a value of ",
              call_of(number).str(), " which no op read there, so that it was not kept.",
              kMakeItDepend);
  const bool has_value = product.held || product.value.defined();
  const bool writes = call.writes_argument(argument);
  TORCH_CHECK(!writes || !has_value || region_.calls().product(number).is_copied(), where(),
              ": expected ops that the forward called, "
              "got one that writes a result of ",
              call_of(number).str(), " which no op wrote there.", kMakeItDepend);
}

}  // namespace remat
