// SPDX-License-Identifier: BSD-3-Clause

// What ops of a replay find: shadows for what the forward wrote outside, and products of calls.
#include "replay_ops.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include <remat/placeholder/placeholder_impl.h>
#include <remat/tape/autocast_cache.h>
#include <remat/tape/current_node.h>
#include <remat/tape/hidden_scopes.h>
#include <remat/tape/op_observer.h>
#include <remat/tape/replay_mismatch.h>
#include <remat/tape/scope.h>

#include <ATen/ops/as_strided.h>

#include "op_writer.h"
#include "storage_bytes.h"
#include "unseen.h"
#include "write_kind.h"

namespace remat {
namespace {

/// Puts `shadow` where `original` stood in the graph before the forward wrote it; where that is not
/// known, where it stands now, unless it was outside of any graph.
void copy_place(const at::Tensor& original, const OutsideStorage& outside, const NodeRange& forward,
                const at::Tensor& shadow) {
  if (const GraphPlace* const place = outside.place_before_write(original))
    return place->give_to(shadow);
  if (!outside.is_written() && !outside.meta().requires_grad()) return;  // it may do so since
  const torch::autograd::Node* const node =
      original.requires_grad() ? current_node(original) : nullptr;
  const bool was_moved = node && forward.contains(*node);
  if (!was_moved || outside.meta().requires_grad()) GraphPlace(original).give_to(shadow);
}

/// How autograd makes the view anew of its base, if not by as_strided(): one of another dtype, or
/// that conjugates.
const torch::autograd::ViewFunc* view_function(const at::Tensor& view) {
  const auto* const meta = torch::autograd::impl::get_view_autograd_meta(view);
  const bool has_one = meta && meta->has_bw_view() && meta->get_backward_view().has_view_fn();
  return has_one ? &meta->get_backward_view().view_fn() : nullptr;
}

/// True for a view, as autograd knows it, that can be made of its base: not if one of them has been
/// given other memory.
bool is_view_of_base(const at::Tensor& tensor) {
  if (!tensor.is_view() || !has_layout(tensor)) return false;
  const at::Tensor base(tensor._base());
  if (memory_of(tensor) != memory_of(base)) return false;
  return view_function(tensor) ||
         (base.scalar_type() == tensor.scalar_type() && !tensor.is_conj() && !tensor.is_neg() &&
          !base.is_conj() && !base.is_neg());
}

/// The part of `base` that `like` is of its own base: a write to the one is a write to the other,
/// in the graph too.
at::Tensor view_in_graph(const at::Tensor& base, const at::Tensor& like) {
  const Unseen unseen;
  const c10::AutoGradMode grad(true);
  if (const torch::autograd::ViewFunc* const view = view_function(like)) return (*view)(base);
  return at::as_strided(base, like.sizes(), like.strides(), like.storage_offset());
}

/// 0 for a tensor without plain strides, which cannot be resized either.
size_t bytes_spanned(const at::Tensor& tensor) {
  return has_layout(tensor) ? TensorLayout(tensor).bytes_spanned() : 0;
}

}  // namespace

ReplayOps::ReplayOps(const Region& region)
    : region_(region),
      slot_end_(region.live_end()),
      outside_(region.outside().size()),
      products_(region.calls().products().size()) {
  const OutsideLog& outside = region.outside();
  std::vector<at::Tensor> kept(outside_.size());
  for (const auto i : c10::irange(outside_.size())) {
    storages_.enter(outside[i].address(), Origin::outside(i));
    kept[i] = outside[i].unpack_kept();
  }
  // At once, not when an op needs it: a region inside must not take a new storage for one of its
  // own that had the same address.
  for (const auto i : c10::irange(outside_.size())) {
    if (!kept[i].defined()) continue;
    const c10::Storage storage = kept[i].storage();
    outside_[i].shadow = outside[i].unpacks_afresh() ? storage : clone_bytes(storage).storage();
    if (const ByteRanges* const known = outside[i].known()) outside_[i].known = *known;
    storages_.enter(outside_[i].shadow.unsafeGetStorageImpl(), Origin::outside(i));
    // A backward inside the function of an outer region: the ops on it are that region's too.
    OpObserver::all_adopt(outside_bytes(i));
  }
  const std::vector<CallProduct::Held> held =
      products_.empty() ? std::vector<CallProduct::Held>() : region.kept_products();
  for (const auto i : c10::irange(products_.size())) {
    const CallProduct& product = region.calls().product(i);
    if (!held[i] || (region.early_stop() && product.reader_slot() >= slot_end_)) continue;
    if (product.is_with_user()) {
      products_[i].held = held[i];
      if (!state_before_) state_before_.emplace();
    } else {
      products_[i].value = unpack(i, held[i]);
    }
  }
}

at::Tensor ReplayOps::unpack(size_t number, const CallProduct::Held& held) const {
  const auto where = [&] {
    return c10::str("[replay] ", region_.label(), ", ", call_of_product(number).str());
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

// Note [What the user has]: code that keeps what SAVE calls leave elsewhere (hooks, a store) may
// bring back all of a region's at once, at the top of its function: `if (is_recomputing()) ...`. So
// it is asked when the replay leaves the call out, not before the function is entered. It runs as
// before the replay: the function's grad mode, autocast and modes are not its own.
const at::Tensor& ReplayOps::value_of(size_t number) {
  Product& product = products_[number];
  if (const CallProduct::Held held = std::exchange(product.held, nullptr)) {
    const at::ThreadLocalStateGuard before(*state_before_);
    const SuspendScopes suspend;
    product.value = unpack(number, held);
  }
  return product.value;
}

const NamedCall& ReplayOps::call_of_product(size_t number) const {
  return region_.calls().records()[region_.calls().product(number).call()].call;
}

at::Tensor ReplayOps::on_product(size_t number, const TensorLayout& layout) {
  const CallProduct& record = region_.calls().product(number);
  Product& product = products_[number];
  if (record.is_opaque()) {
    at::Tensor value = tensor_data(value_of(number));
    storages_.enter(memory_of(value), Origin::product(number));
    opaque_.push_back(value);
    return value;
  }
  if (!product.storage) {
    if (const at::Tensor& value = value_of(number); value.defined()) {
      product.storage = value.storage();
    } else if (record.needs_memory()) {
      product.storage = empty_storage(record.size_bytes(), record.device());
      product.unreadable = true;
    } else {
      product.storage = c10::Storage(c10::make_intrusive<PlaceholderStorage>(
          record.size_bytes(), record.device(),
          PlaceholderInfo{.kind = PlaceholderKind::kResult,
                          .region = region_.label(),
                          .call = call_of_product(number).name,
                          .op = policy_name(call_of_product(number).policy)}));
    }
    storages_.enter(product.storage.unsafeGetStorageImpl(), Origin::product(number));
    // Of a replay inside a region's function: it is made there too, unless the forward made it.
    if (record.storage().address() != product.storage.unsafeGetStorageImpl())
      OpObserver::all_adopt(lay_out(product.storage, layout));
  }
  return lay_out(product.storage, layout);
}

void ReplayOps::put_inside(const c10::Storage& storage, size_t product) {
  storages_.enter(storage.unsafeGetStorageImpl(), Origin::product(product));
  products_[product].storage = storage;
  if (const at::Tensor& value = value_of(product); value.defined()) {
    copy_bytes(value.storage(), storage);
  } else {
    products_[product].unreadable = !PlaceholderStorage::is(storage);
  }
}

at::Tensor ReplayOps::outside_bytes(size_t number) const {
  const c10::Storage& shadow = outside_[number].shadow;
  return shadow ? lay_out(shadow, TensorLayout::flat(shadow.nbytes(), c10::kByte)) : at::Tensor();
}

void ReplayOps::put_outside(size_t number, size_t product) {
  const at::Tensor& value = value_of(product);
  if (!value.defined()) return;
  copy_bytes(value.storage(), outside_[number].shadow);
  outside_[number].known.reset();
}

void ReplayOps::check_product(const OpCall& call, size_t argument, size_t number,
                              size_t slot) const {
  if (!call.info().reads_data()) return;
  const Product& product = products_[number];
  TORCH_CHECK(!product.unreadable, where(slot), ", op ", call.info().name(),
              ": expected ops that "
              "the forward called, got one that reads a value of ",
              call_of_product(number).str(), " which no op read there, so that it was not kept.",
              kMakeItDepend);
  const bool writes = call.writes_argument(argument);
  TORCH_CHECK(!writes || !has_value(number) || region_.calls().product(number).is_copied(),
              where(slot), ", op ", call.info().name(),
              ": expected ops that the forward called, "
              "got one that writes a result of ",
              call_of_product(number).str(), " which no op wrote there.", kMakeItDepend);
}

void ReplayOps::check_products(const OpCall& call, size_t slot) const {
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    const Origin origin = origin_of(tensor);
    if (origin.is_product()) check_product(call, i, origin.number(), slot);
  });
}

c10::Storage ReplayOps::shadow_of_argument(size_t i) const {
  const c10::ArrayRef<Origin> arguments = region_.outside().arguments();
  if (i >= arguments.size() || !arguments[i].is_outside()) return {};
  return outside_[arguments[i].number()].shadow;
}

void ReplayOps::enter_argument(size_t i, const at::Tensor& input, int64_t moved) {
  // Kept through hooks, an argument comes back in another storage.
  const c10::ArrayRef<Origin> origins = region_.outside().arguments();
  if (i >= origins.size() || !input.defined() || !origins[i].is_outside()) return;
  const void* const memory =
      is_freed(input) ? input.storage().unsafeGetStorageImpl() : memory_of(input);
  if (!memory) return;
  storages_.enter(memory, origins[i]);
  if (moved != 0) moved_.push_back({memory, moved});
}

Origin ReplayOps::origin_of(const at::Tensor& tensor) const {
  if (const void* const memory = memory_of(tensor)) return storages_.find(memory);
  // Of what was freed since the shadow may be there.
  const Origin origin =
      is_freed(tensor) ? storages_.find(tensor.storage().unsafeGetStorageImpl()) : Origin::inside();
  return origin.is_outside() ? origin : Origin::inside();
}

void ReplayOps::before(OpCall& call, bool compared, size_t slot) {
  op_ = {.slot = slot,
         .is_compared = compared && is_written_down(call),
         .is_cast = is_cacheable_cast(call),
         .made = origin_of_results(call.info())};
  if (op_.is_compared) {
    words_.clear();
    unknown_.clear();
  }
  // Views compute nothing.
  const bool computes = op_.is_compared && !call.info().is_plain_view();
  write_op(op_.is_compared ? &words_ : nullptr, call,
           computes ? region_.settings().changed(call.info()) : 0, region_, storages_, *this);
  // First: an op that differs explains more than a tensor that does.
  if (op_.is_compared) compare(slot, nullptr);
  if (op_.touches_product) check_products(call, slot);
  if (!op_.touches_outside) return;
  exchange(call);
  check_outside(call, slot);
}

Origin ReplayOps::look(const OpCall& call, size_t argument, const at::Tensor& tensor) {
  const Origin origin = origin_of(tensor);
  check_not_freed(call, argument, tensor, op_.slot);
  if (origin.is_outside() || origin.is_unknown()) op_.touches_outside = true;
  if (origin.is_product()) op_.touches_product = true;
  if (origin.is_unknown() && call.info().is_plain_view()) op_.views_unknown = has_layout(tensor);
  if (C10_UNLIKELY(op_.is_cast) && argument == 0)
    op_.made = Origin::cast_of(origin, layout_hash(tensor, moved(tensor)));
  return origin;
}

// What the region writes has been kept.
void ReplayOps::look_at_values(const OpCall& call, const at::Tensor& tensor, Origin origin) {
  if (origin.is_outside()) check_read(call, written_as(tensor, origin), origin.number(), op_.slot);
}

const at::Tensor& ReplayOps::written_as(const at::Tensor& tensor, Origin origin) {
  const bool is_asked_for = origin.is_unknown() && !(has_layout(tensor) && tensor.numel() == 0);
  if (is_asked_for) unknown_.push_back(tensor.has_storage() ? tensor.storage() : c10::Storage());
  return has_shadow(tensor, origin) ? shadow_of(tensor, origin) : tensor;
}

/// Of what the region has found: what it makes itself it may free, and give memory to again.
void ReplayOps::check_not_freed(const OpCall& call, size_t argument, const at::Tensor& tensor,
                                size_t slot) const {
  if (C10_LIKELY(memory_of(tensor)) || !is_freed(tensor)) return;
  if (!call.info().needs_memory() || call.writes_argument(argument)) return;
  const Origin origin = origin_of(tensor);
  TORCH_CHECK(!origin.is_outside() || has_shadow(tensor, origin), where(slot), ", op ",
              call.info().name(), " (", TensorMeta(tensor).str(), "): ", kMemoryFreed,
              kGiveMemoryBack);
}

void ReplayOps::exchange(OpCall& call) {
  for (const auto i : c10::irange(call.info().argument_count())) {
    c10::IValue& value = call.argument(i);
    bool any = false;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      any = any || has_shadow(tensor, origin_of(tensor));
    });
    if (!any) continue;
    op_.is_exchanged = true;
    transform_tensors(value, [&](const at::Tensor& tensor) { return stand_in(tensor); });
  }
  if (op_.is_exchanged) call.collect();
}

at::Tensor ReplayOps::stand_in(const at::Tensor& tensor) {
  const Origin origin = origin_of(tensor);
  return has_shadow(tensor, origin) ? shadow_of(tensor, origin) : tensor;
}

torch::autograd::Edge ReplayOps::stand_in(const torch::autograd::Edge& edge) const {
  for (const auto& [impl, shadow] : tensors_) {
    const bool is_in_graph = shadow.original.requires_grad() && shadow.tensor.requires_grad() &&
                             !is_stale_view(shadow.original);
    if (is_in_graph && torch::autograd::impl::gradient_edge(shadow.original) == edge)
      return torch::autograd::impl::gradient_edge(shadow.tensor);
  }
  return edge;
}

bool ReplayOps::has_shadow_in_graph() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& entry) { return entry.second.tensor.requires_grad(); });
}

void ReplayOps::check_outside(const OpCall& call, size_t slot) {
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    const Origin origin = origin_of(tensor);
    if (origin.is_outside()) check_read(call, tensor, origin.number(), slot);
    const bool has_parts = origin.is_outside() && outside_[origin.number()].known;
    if (has_parts) check_known(call, i, tensor, origin.number(), slot);
    const bool is_ours =
        !origin.is_unknown() &&
        (!origin.is_outside() ||
         (is_shadow(tensor, origin) && region_.outside()[origin.number()].is_written()));
    TORCH_CHECK(is_ours || !call.writes_argument(i), where(slot), ", op ", call.info().name(),
                ": expected to write what the forward wrote, got another tensor (",
                TensorMeta(tensor).str(),
                ") from outside the region. Make what the function writes depend on its "
                "arguments only.");
  });
  if (call.info().writes()) note_written(call);
}

// See Note [What a write keeps].
void ReplayOps::check_known(const OpCall& call, size_t argument, const at::Tensor& tensor,
                            size_t number, size_t slot) const {
  const bool reads = call.info().reads_data() && (!call.writes_argument(argument) ||
                                                  write_kind(call, argument) == WriteKind::kReads);
  if (!reads || !is_shadow(tensor, Origin::outside(number)) || !has_layout(tensor)) return;
  const TensorLayout layout(tensor);
  const std::optional<ByteRuns> runs = runs_of(layout);
  const ByteRanges& known = *outside_[number].known;
  const bool is_known = runs
                            ? std::all_of(runs->begin(), runs->end(),
                                          [&](const ByteRange& run) { return known.contains(run); })
                            : known.contains(span_of(layout));
  if (is_known) return;
  throw ReplayMismatch(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(where(slot), ", op ", call.info().name(),
               ": expected to read the parts of a tensor from outside the region that the forward "
               "read (",
               region_.outside()[number].meta().str(), "), got another part (",
               TensorMeta(tensor).str(), " at element ", tensor.storage_offset(),
               "), of which nothing is kept, since the region writes the tensor.", kMakeItDepend));
}

/// What the op writes without reading may be read after it.
void ReplayOps::note_written(const OpCall& call) {
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (!call.writes_argument(i) || write_kind(call, i) != WriteKind::kWhole) return;
    const Origin origin = origin_of(tensor);
    if (!origin.is_outside() || !is_shadow(tensor, origin) || !has_layout(tensor)) return;
    std::optional<ByteRanges>& known = outside_[origin.number()].known;
    if (!known) return;
    for (const ByteRange& run : runs_of(TensorLayout(tensor)).value_or(ByteRuns())) known->add(run);
  });
}

void ReplayOps::check_read(const OpCall& call, const at::Tensor& tensor, size_t number,
                           size_t slot) {
  const OutsideStorage& outside = region_.outside()[number];
  if (!reads_data(call.info(), tensor) || !outside.is_read() || outside_[number].checked) return;
  outside_[number].checked = true;
  TORCH_CHECK(!is_freed(tensor) || call.info().writes(), where(slot), ", op ", call.info().name(),
              " (", TensorMeta(tensor).str(), "): ", kMemoryFreed, kGiveMemoryBack);
  outside.check_inner(tensor, [&] { return where(slot) + ", op " + call.info().name(); });
  // An argument that came back from hooks has a version of its own.
  if (outside.address() != memory_of(tensor)) return;
  outside.check_unchanged(tensor, [&] { return where(slot) + ", op " + call.info().name(); });
}

bool ReplayOps::has_shadow(const at::Tensor& tensor, Origin origin) const {
  return origin.is_outside() && outside_[origin.number()].shadow && !is_shadow(tensor, origin);
}

bool ReplayOps::is_shadow(const at::Tensor& tensor, Origin origin) const {
  return origin.is_outside() &&
         outside_[origin.number()].shadow.unsafeGetStorageImpl() == memory_of(tensor);
}

const at::Tensor& ReplayOps::shadow_of(const at::Tensor& tensor, Origin origin) {
  Shadow& shadow = tensors_[tensor.unsafeGetTensorImpl()];
  if (shadow.tensor.defined()) return shadow.tensor;
  const size_t number = origin.number();
  const c10::Storage& storage = outside_[number].shadow;
  TORCH_CHECK(bytes_spanned(tensor) <= storage.nbytes(), "[replay] ", region_.label(),
              ": expected the tensor ", region_.outside()[number].meta().str(),
              " from outside the region to have the size that it had in the forward, got ",
              TensorMeta(tensor).str(), ". Do not resize it.");
  shadow.original = tensor;
  if (is_view_of_base(tensor)) {
    shadow.tensor = view_in_graph(shadow_of(at::Tensor(tensor._base()), origin), tensor);
    by_shadow_.emplace(shadow.tensor.unsafeGetTensorImpl(), &shadow);
    return shadow.tensor;
  }
  shadow.tensor = view_storage(storage, tensor);
  by_shadow_.emplace(shadow.tensor.unsafeGetTensorImpl(), &shadow);
  copy_place(tensor, region_.outside()[number], region_.nodes(), shadow.tensor);
  return shadow.tensor;
}

void ReplayOps::after(OpCall& call) {
  size_t number = 0;
  for (const auto i : c10::irange(call.info().return_count())) {
    c10::IValue& result = call.result(i);
    if (C10_UNLIKELY(call.info().makes_objects())) words_.note_made(result);
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      if (C10_UNLIKELY(op_.views_unknown)) viewed_unknown_.push_back(memory_of(tensor));
      storages_.enter_result(tensor,
                             op_.is_compared ? Origin::made(op_count_ - 1, number++) : op_.made);
    });
    if (op_.is_exchanged && call.info().writes()) {
      transform_tensors(result, [&](const at::Tensor& tensor) { return original_of(tensor); });
    }
  }
}

// In-place ops return the tensor that the function knows.
const at::Tensor& ReplayOps::original_of(const at::Tensor& tensor) const {
  const auto entry = by_shadow_.find(tensor.unsafeGetTensorImpl());
  return entry == by_shadow_.end() ? tensor : entry->second->original;
}

std::string ReplayOps::where(size_t slot) const {
  return c10::str("[replay] ", region_.label(), ", slot ", slot);
}

}  // namespace remat
