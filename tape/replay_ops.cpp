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
#include <remat/tape/current_node.h>
#include <remat/tape/interception_bits.h>
#include <remat/tape/replay_mismatch.h>
#include <remat/tape/saved_tensor_frame.h>

#include <ATen/ops/as_strided.h>

#include "drawn_generator.h"
#include "storage_bytes.h"
#include "tensor_hash.h"

namespace remat {
namespace {

/// Puts `shadow` where `original` stood in the graph before the forward wrote it; where that is not
/// known, where it stands now, unless it was outside of any graph.
void copy_place(const at::Tensor& original, const OutsideStorage& outside, const NodeRange& forward,
                const at::Tensor& shadow) {
  if (const GraphPlace* const place = outside.place_before_write(original))
    return place->give_to(shadow);
  const torch::autograd::Node* const node =
      original.requires_grad() ? current_node(original) : nullptr;
  const bool was_moved = node && forward.contains(*node);
  if (!was_moved || outside.meta().requires_grad()) GraphPlace(original).give_to(shadow);
}

/// True for a view, as autograd knows it, that as_strided() can make of its base.
bool is_plain_view(const at::Tensor& tensor) {
  return tensor.is_view() && has_layout(tensor) &&
         tensor._base().scalar_type() == tensor.scalar_type() && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor._base().is_conj() && !tensor._base().is_neg();
}

/// The part of `base` that `like` is of its own base: a write to the one is a write to the other,
/// in the graph too.
at::Tensor view_in_graph(const at::Tensor& base, const at::Tensor& like) {
  const InterceptionOff unseen;
  const c10::AutoGradMode grad(true);
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
  for (const auto i : c10::irange(outside_.size())) {
    storages_.enter(outside[i].address(), Origin::outside(i));
    outside_[i].kept = outside[i].unpack_kept();
  }
  // At once, not when an op needs it: a region inside must not take a new storage for one of its
  // own that had the same address.
  for (const auto i : c10::irange(outside_.size())) {
    const at::Tensor& kept = outside_[i].kept;
    if (!kept.defined()) continue;
    outside_[i].shadow = clone_bytes(kept.storage()).storage();
    storages_.enter(outside_[i].shadow.unsafeGetStorageImpl(), Origin::outside(i));
    // A backward inside the function of an outer region: the ops on it are that region's too.
    SavedTensorFrame::all_adopt(outside_bytes(i));
  }
  const std::vector<CallProduct::Held> held =
      products_.empty() ? std::vector<CallProduct::Held>() : region.kept_products();
  for (const auto i : c10::irange(products_.size())) {
    const CallProduct& product = region.calls().product(i);
    if (!held[i] || (region.early_stop() && product.reader_slot() >= slot_end_)) continue;
    products_[i].value = product.unpack(held[i], [&] {
      return c10::str("[replay] ", region.label(), ", ", call_of_product(i).str());
    });
  }
}

const NamedCall& ReplayOps::call_of_product(size_t number) const {
  return region_.calls().records()[region_.calls().product(number).call()].call;
}

at::Tensor ReplayOps::on_product(size_t number, const TensorLayout& layout) {
  const CallProduct& record = region_.calls().product(number);
  Product& product = products_[number];
  if (record.is_opaque()) {
    const InterceptionOff unseen;
    at::Tensor value = product.value.detach();
    storages_.enter(memory_of(value), Origin::product(number));
    opaque_.push_back(value);
    return value;
  }
  if (!product.storage) {
    if (product.value.defined()) {
      product.storage = product.value.storage();
    } else if (record.needs_memory()) {
      product.storage = empty_storage(record.size_bytes(), record.device());
      product.unreadable = true;
    } else {
      product.storage = c10::Storage(c10::make_intrusive<PlaceholderStorage>(
          record.size_bytes(), record.device(),
          PlaceholderInfo{.kind = PlaceholderKind::kSlot,
                          .region = region_.label(),
                          .slot = call_of_product(number).name,
                          .op = policy_name(call_of_product(number).policy)}));
    }
    storages_.enter(product.storage.unsafeGetStorageImpl(), Origin::product(number));
    // Of a replay inside a region's function: it is made there too, unless the forward made it.
    if (record.storage().address() != product.storage.unsafeGetStorageImpl())
      SavedTensorFrame::all_adopt(lay_out(product.storage, layout));
  }
  return lay_out(product.storage, layout);
}

void ReplayOps::put_inside(const c10::Storage& storage, size_t product) {
  storages_.enter(storage.unsafeGetStorageImpl(), Origin::product(product));
  products_[product].storage = storage;
  if (products_[product].value.defined()) {
    copy_bytes(products_[product].value.storage(), storage);
  } else {
    products_[product].unreadable = !PlaceholderStorage::is(storage);
  }
}

at::Tensor ReplayOps::outside_bytes(size_t number) const {
  const c10::Storage& shadow = outside_[number].shadow;
  return shadow ? lay_out(shadow, TensorLayout::flat(shadow.nbytes(), c10::kByte)) : at::Tensor();
}

void ReplayOps::put_outside(size_t number, size_t product) {
  const at::Tensor& value = products_[product].value;
  if (value.defined()) copy_bytes(value.storage(), outside_[number].shadow);
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
  TORCH_CHECK(!writes || !product.value.defined() || region_.calls().product(number).is_copied(),
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
  if (!region_.outside().writes_argument(i)) return {};
  return outside_[region_.outside().arguments()[i].number()].shadow;
}

void ReplayOps::enter_arguments(c10::ArrayRef<at::Tensor> inputs) {
  // Kept through hooks, an argument comes back in another storage.
  const c10::ArrayRef<Origin> origins = region_.outside().arguments();
  for (const auto i : c10::irange(std::min(inputs.size(), origins.size()))) {
    if (!inputs[i].defined() || !origins[i].is_outside()) continue;
    if (const void* const memory = memory_of(inputs[i])) storages_.enter(memory, origins[i]);
  }
}

Origin ReplayOps::origin_of(const at::Tensor& tensor) const {
  const void* const memory = memory_of(tensor);
  return memory ? storages_.find(memory) : Origin::inside();
}

void ReplayOps::before(OpCall& call, bool compared, size_t slot) {
  exchanged_ = false;
  if (compared) {
    words_.clear();
    words_.begin(call.info());
    if (call.info().may_draw() && region_.preserve_rng()) words_.add_draw(draw_position(call));
    unknown_.clear();
  }
  bool touches_outside = false;
  bool touches_product = false;
  visit_arguments(
      call,
      [&](size_t, const at::Tensor& tensor) {
        const Origin origin = origin_of(tensor);
        touches_outside = touches_outside || origin.is_outside() || origin.is_unknown();
        touches_product = touches_product || origin.is_product();
        if (!compared) return;
        if (call.info().is_lift()) words_.add_value(host_value(tensor));
        add_word(tensor, origin);
      },
      [&](size_t, const c10::IValue& value) {
        if (compared) words_.add_value(value);
      });
  // First: an op that differs explains more than a tensor that does.
  if (compared) {
    words_.end();
    compare(slot, nullptr);
  }
  if (touches_product) check_products(call, slot);
  if (!touches_outside) return;
  exchange(call);
  check_outside(call, slot);
}

void ReplayOps::exchange(OpCall& call) {
  for (const auto i : c10::irange(call.info().argument_count())) {
    c10::IValue& value = call.argument(i);
    bool any = false;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      any = any || has_shadow(tensor, origin_of(tensor));
    });
    if (!any) continue;
    exchanged_ = true;
    transform_tensors(value, [&](const at::Tensor& tensor) { return stand_in(tensor); });
  }
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
    const bool is_ours =
        !origin.is_unknown() && (!origin.is_outside() || is_shadow(tensor, origin));
    TORCH_CHECK(is_ours || !call.writes_argument(i), where(slot), ", op ", call.info().name(),
                ": expected to write what the forward wrote, got another tensor (",
                TensorMeta(tensor).str(),
                ") from outside the region. Make what the function writes depend on its "
                "arguments only.");
  });
}

void ReplayOps::check_read(const OpCall& call, const at::Tensor& tensor, size_t number,
                           size_t slot) {
  const OutsideStorage& outside = region_.outside()[number];
  if (!call.info().reads_data() || !outside.is_read() || outside_[number].checked) return;
  outside_[number].checked = true;
  // An argument that came back from hooks has a version of its own.
  if (outside.address() != memory_of(tensor)) return;
  TORCH_CHECK(
      !outside.has_storage() || outside.is_written() || outside.has_bytes_of(tensor.storage()),
      where(slot), ", op ", call.info().name(), ": expected memory from outside the region (",
      outside.meta().str(),
      ") as the forward read it, got other bytes: the host has written it (numpy, a raw "
      "pointer). Do not write it between forward and backward, or pass a clone.");
  outside.check_unchanged(tensor, [&] { return where(slot) + ", op " + call.info().name(); });
}

bool ReplayOps::has_shadow(const at::Tensor& tensor, Origin origin) const {
  return origin.is_outside() && outside_[origin.number()].kept.defined() &&
         !is_shadow(tensor, origin);
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
  if (is_plain_view(tensor)) {
    shadow.tensor = view_in_graph(shadow_of(at::Tensor(tensor._base()), origin), tensor);
    return shadow.tensor;
  }
  shadow.tensor = view_storage(storage, tensor);
  copy_place(tensor, region_.outside()[number], region_.nodes(), shadow.tensor);
  return shadow.tensor;
}

void ReplayOps::after(OpCall& call) {
  for (const auto i : c10::irange(call.info().return_count())) {
    c10::IValue& result = call.result(i);
    for_each_tensor(result, [&](const at::Tensor& tensor) { storages_.enter_result(tensor); });
    if (exchanged_ && call.info().writes()) {
      transform_tensors(result, [&](const at::Tensor& tensor) { return original_of(tensor); });
    }
  }
}

// In-place ops return the tensor that the function knows.
const at::Tensor& ReplayOps::original_of(const at::Tensor& tensor) const {
  const auto entry = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& shadow) {
    return shadow.second.tensor.is_same(tensor);
  });
  return entry == tensors_.end() ? tensor : entry->second.original;
}

std::string ReplayOps::where(size_t slot) const {
  return c10::str("[replay] ", region_.label(), ", slot ", slot);
}

}  // namespace remat
