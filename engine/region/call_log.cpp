// SPDX-License-Identifier: BSD-3-Clause

// Keeping what SAVE calls leave for replays.
#include <remat/engine/call_log.h>

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include <remat/engine/named_calls.h>
#include <remat/engine/op_call.h>
#include <remat/engine/result_aliases.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/unseen.h>

namespace remat {
namespace {

/// The storage of the product that `output` is on; null if there is no product or no storage left.
const void* made_storage_of(const CallOutput& output, const CallLog& calls) {
  const bool is_made = output.source == CallOutput::Source::kProduct;
  return is_made ? calls.product(output.product).made_storage() : nullptr;
}

/// Adds `position`, that of `output` among the call's results, to kept.results if `output` is the
/// kept tensor. Requires that both are on one storage.
void note_result(KeptTensor& kept, const CallOutput& output, size_t position) {
  const bool is_it = kept.storage.address() && kept.layout && *kept.layout == output.layout;
  if (is_it) kept.results.push_back(static_cast<uint32_t>(position));
}

}  // namespace

CallProduct::CallProduct(size_t call, const at::Tensor& tensor)
    : CallProduct(call, tensor, /*is_written=*/false) {}

CallProduct CallProduct::written(size_t call, const at::Tensor& tensor) {
  return {call, tensor, /*is_written=*/true};
}

CallProduct::CallProduct(size_t call, const at::Tensor& tensor, bool is_written)
    : call_(call),
      is_written_(is_written),
      is_opaque_(!has_layout(tensor)),
      is_of_parameter_(is_parameter(tensor)),
      meta_(tensor),
      kept_{.is_copied = is_written} {
  if (is_opaque_) return;
  const c10::Storage& storage = tensor.storage();
  size_bytes_ = storage.nbytes();
  storage_ = HeldStorage(tensor);
  kept_.layout = whole_layout(tensor);
}

void CallProduct::keep(const at::Tensor& tensor, KeepReason reason, size_t reader_slot) {
  if (reason_.kind == KeepReason::Kind::kNone) {
    reason_ = std::move(reason);
    reason_.slot = std::min(reader_slot, first_slot_);
  }
  if (kept_.held) return;
  if (kept_.is_copied) return keep_copy(tensor);
  const c10::InferenceMode normal(false);  // Autograd cannot save inference tensors.
  kept_.version.emplace(tensor);
  kept_.held = std::make_shared<const torch::autograd::SavedVariable>(
      is_opaque_ ? tensor_data(tensor) : lay_out(tensor.storage(), kept_.layout),
      /*is_output=*/false);
}

void CallProduct::keep_copy(const at::Tensor& tensor) {
  kept_.is_copied = true;
  kept_.layout = TensorLayout::flat(size_bytes_, c10::kByte);
  kept_.version.reset();
  kept_.held = std::make_shared<const torch::autograd::SavedVariable>(
      keep_bytes(tensor.storage(), kept_.copy));
}

at::Tensor CallProduct::unpack_to_read(const Held& held,
                                       c10::function_ref<std::string()> where) const {
  TORCH_CHECK(!kept_.version || !kept_.version->changed(), modified_in_place(meta_, *kept_.version),
              where(),
              ": expected its result as it left it, got it modified in-place. Do not write it "
              "between forward and backward, "
              "or write to a clone.");
  const at::Tensor value = held->unpack();
  if (is_opaque_) return value;
  TORCH_CHECK(!is_freed(value), where(), " (", meta_.str(), "): ", kMemoryFreed, kGiveMemoryBack);
  TORCH_CHECK(
      !kept_.version || memory_of(value) != storage_.address() || !changed_by_alias(*kept_.version),
      where(), " (", meta_.str(), "): ", kResultChanged);
  return on_whole_storage(value, kept_.layout, size_bytes_);
}

at::Tensor CallProduct::unpack(const Held& held, c10::function_ref<std::string()> where) const {
  at::Tensor value = unpack_to_read(held, where);
  if (is_opaque_ || !kept_.is_copied) return value;
  return lay_out(copy_into_storage(value, kept_.layout, size_bytes_), kept_.layout);
}

KeptTensor::KeptTensor(size_t call_index, std::string tensor_name, const at::Tensor& of)
    : call(call_index),
      name(std::move(tensor_name)),
      meta(of),
      storage(of),
      tensor(of.unsafeGetTensorImpl()),
      is_parameter(remat::is_parameter(of)) {
  if (has_layout(of)) layout.emplace(of);
}

ArgumentView::ArgumentView(size_t number, const at::Tensor& argument_tensor, const at::Tensor& view)
    : argument(number) {
  if (view.is_same(argument_tensor)) return;
  layout = TensorLayout(view);
  base = TensorLayout(argument_tensor);
  is_whole = layout == base;
}

void ArgumentView::check(const at::Tensor& argument_tensor,
                         c10::function_ref<std::string()> where) const {
  if (is_whole) return;
  TORCH_CHECK(!is_freed(argument_tensor), where(), ", argument ", argument, ": ", kMemoryFreed,
              kGiveMemoryBack);
  const TensorLayout now(argument_tensor);
  const TensorLayout there = layout_on(argument_tensor);
  TORCH_CHECK(now.sizes == base.sizes && now.strides == base.strides && now.dtype == base.dtype &&
                  there.offset >= 0 && there.bytes_spanned() <= argument_tensor.storage().nbytes(),
              where(), ", argument ", argument, ": expected the shape ",
              c10::IntArrayRef(base.sizes), " and strides ", c10::IntArrayRef(base.strides),
              " of the forward, since backward needs a "
              "view of it, got a different layout: ",
              c10::IntArrayRef(now.sizes), " and ", c10::IntArrayRef(now.strides),
              ". Saved-tensor hooks must return tensors with the strides that they were given.");
}

TensorLayout ArgumentView::layout_on(const at::Tensor& argument_tensor) const {
  if (is_whole) return TensorLayout(argument_tensor);
  TensorLayout there = layout;
  there.offset += argument_tensor.storage_offset() - base.offset;
  return there;
}

at::Tensor ArgumentView::of(const at::Tensor& argument_tensor) const {
  return lay_out(argument_tensor.storage(), layout_on(argument_tensor));
}

CallRecord& CallLog::add(const NamedCall& call) {
  CallRecord& record = records_.emplace_back();
  record.call = call;
  return record;
}

size_t CallLog::add_product(CallProduct product) {
  products_.push_back(std::move(product));
  return products_.size() - 1;
}

void CallLog::find_results() {
  const auto is_of_last = [&](const KeptTensor& kept) { return kept.call + 1 == records_.size(); };
  if (kept_.empty() || !is_of_last(kept_.back())) return;
  const auto& outputs = records_.back().outputs;
  std::unordered_multimap<const void*, size_t> on_storage;
  for (const auto i : c10::irange(outputs.size())) {
    if (const void* const storage = made_storage_of(outputs[i], *this))
      on_storage.emplace(storage, i);
  }
  for (auto kept = kept_.rbegin(); kept != kept_.rend() && is_of_last(*kept); ++kept) {
    const auto [begin, end] = on_storage.equal_range(kept->storage.address());
    for (auto found = begin; found != end; ++found)
      note_result(*kept, outputs[found->second], found->second);
    std::sort(kept->results.begin(), kept->results.end());
  }
}

void CallLog::find_results(KeptTensor& kept) const {
  const auto& outputs = records_[kept.call].outputs;
  for (const auto i : c10::irange(outputs.size())) {
    if (made_storage_of(outputs[i], *this) == kept.storage.address())
      note_result(kept, outputs[i], i);
  }
}

void CallLog::finish(size_t slot_end) {
  for (const auto i : c10::irange(products_.size())) {
    if (products_[i].is_kept()) by_reader_.push_back(i);
  }
  std::stable_sort(by_reader_.begin(), by_reader_.end(), [&](size_t a, size_t b) {
    return products_[a].reader_slot() < products_[b].reader_slot();
  });
  release_from(slot_end);
  for (CallProduct& product : products_) {
    if (!product.is_kept()) product.forget_storage();
  }
}

std::vector<CallProduct::Held> CallLog::release_from(size_t slot_end) {
  std::vector<CallProduct::Held> released;
  // Stops at the first product that stays, because this function runs for each freed slot.
  for (; !by_reader_.empty(); by_reader_.pop_back()) {
    CallProduct& product = products_[by_reader_.back()];
    if (product.reader_slot() < slot_end) break;
    released.push_back(product.release());
  }
  return released;
}

std::atomic<bool> placeholders_work{true};

}  // namespace remat
