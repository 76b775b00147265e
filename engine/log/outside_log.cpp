// SPDX-License-Identifier: BSD-3-Clause

// Watching storages from outside, and copying those that the region writes.
#include <remat/engine/outside_log.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <remat/engine/current_node.h>
#include <remat/engine/gathered_memory.h>
#include <remat/engine/result_aliases.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/stream_use.h>
#include <remat/engine/tensor_hash.h>
#include <remat/engine/tensor_layout.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

/// Returns 0 for a storage whose bytes are not compared, because it is on a device or too large.
uint64_t hash_of_bytes(const c10::Storage& storage) {
  const bool is_compared =
      storage.device().is_cpu() && storage.nbytes() <= OutsideStorage::kMaxCompared;
  if (!is_compared) return 0;
  return hash_of(lay_out(storage, TensorLayout::flat(storage.nbytes(), c10::kByte)));
}

TensorLayout flat_part(const ByteRange& range) {
  TensorLayout layout = TensorLayout::flat(range.end - range.begin, c10::kByte);
  layout.offset = static_cast<int64_t>(range.begin);
  return layout;
}

/// Avoids building a layout for contiguous tensors.
ByteRange span_of(const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) return span_of(TensorLayout(tensor));
  const size_t begin = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  return {begin, begin + tensor.nbytes()};
}

/// The layout with one element in place of each expanded dimension, and without lazy conjugation
/// and negation.
TensorLayout distinct_layout(const at::Tensor& tensor) {
  TensorLayout layout(tensor);
  for (const auto d : c10::irange(layout.sizes.size())) {
    if (layout.strides[d] == 0 && layout.sizes[d] > 1) layout.sizes[d] = 1;
  }
  layout.conjugated = layout.negated = false;
  return layout;
}

/// True unless it is certain that no two elements share memory.
bool overlaps_itself(const TensorLayout& layout) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // Pairs of stride and size.
  for (const auto d : c10::irange(layout.sizes.size())) {
    if (layout.sizes[d] > 1) dims.emplace_back(layout.strides[d], layout.sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t span = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < span) return true;
    span = stride * (size - 1) + span;
  }
  return false;
}

/// Returns `kept` for use on the current stream; another stream may have made it.
at::Tensor read_here(at::Tensor kept) {
  note_stream_use(kept);
  return kept;
}

/// Null if the tensor has no .grad.
const c10::TensorImpl* grad_of(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return nullptr;
  const at::Tensor& grad = tensor.mutable_grad();
  return grad.defined() ? grad.unsafeGetTensorImpl() : nullptr;
}

}  // namespace

OutsideStorage::OutsideStorage(const at::Tensor& tensor)
    : address_(memory_of(tensor)),
      tensor_(tensor.getIntrusivePtr()),
      grad_(grad_of(tensor)),
      meta_(tensor),
      version_(tensor, /*is_from_outside=*/true) {
  if (is_of_python_class(tensor)) inner_ = std::make_unique<InnerVersions>(tensor);
  if (!tensor.has_storage()) return;
  storage_.emplace(weak_storage(tensor));
  size_bytes_ = tensor.storage().nbytes();
  shard_version_ = shard_version(*tensor.storage().unsafeGetStorageImpl());
  is_foreign_ = tensor.storage().allocator() == nullptr;
  const bool has_no_version = is_foreign_ || tensor.is_inference();
  if (has_no_version && !tensor.requires_grad()) hash_ = hash_of_bytes(tensor.storage());
}

bool OutsideStorage::has_first_grad() const {
  if (!meta_.requires_grad()) return true;
  const at::Tensor tensor(tensor_.lock());
  return !tensor.defined() || grad_of(tensor) == grad_;
}

bool OutsideStorage::is_exchanged() const {
  const at::Tensor tensor(tensor_.lock());
  if (tensor.defined() && memory_of(tensor) != address_ && !is_freed(tensor)) return true;
  return has_storage() && memory_now(version_) != MemoryNow::kThere;
}

bool OutsideStorage::has_bytes_of(const c10::Storage& storage) const {
  return hash_ == 0 || hash_ == hash_of_bytes(storage);
}

// Note [What a write keeps]: a replay needs a written storage as it was before the region's first
// write, but only the bytes that it reads. So the kept bytes are those that ops of the region read
// before the region has made them itself. They are kept in parts. Each part is copied when an op
// first reads it, or before the first write if it was read before that write. If the region has
// already written a byte of the part, the copy has no old value of that byte. A replay does not
// need the old value: an op that reads a byte has it kept first, so only an op that did not read
// the byte can have written it, and the replay repeats that op before anything reads the byte. The
// bytes that a replay may read are `known`: bytes of the parts, and bytes that ops have overwritten
// whole without reading. Ops that write some elements without reading any (index_put_) do not make
// bytes known: until such bytes are read they are as good as unwritten, since the replay writes the
// same elements again. Parts are put in place in reverse order: where two overlap, the first one
// has the older values. Only the region's ops decide what is kept, never who else has the storage,
// because kept parts are slots of an outer region, whose replay must make the same slots.
struct OutsideStorage::Written {
  struct Part {
    TensorLayout layout;
    torch::autograd::SavedVariable value;
    HeldStorage storage;
  };

  explicit Written(const at::Tensor& tensor)
      : device(tensor.device()),
        skipped(tensor.has_storage() ? misalignment(tensor.storage()) : 0),
        base(tensor.getIntrusivePtr()),
        place(tensor) {}

  c10::Device device;
  size_t skipped;    // Misalignment of the storage: NumPy's memory may begin anywhere.
  WeakTensor base;   // The tensor that was written first; if it is a view, its base.
  GraphPlace place;  // Position of `base` in the graph.
  std::vector<Part> parts;
  ByteRanges known;
  bool knows_all = false;
  c10::Storage placeholder;  // Set if the storage is a placeholder's, which is never copied.
};

void OutsideStorage::mark_read(const at::Tensor& tensor) {
  read_ = true;
  if (written_ || !storage_) return;
  const ByteRange span = has_layout(tensor) ? span_of(tensor) : ByteRange{0, size_bytes_};
  if (span.empty()) return;
  read_bytes_.begin = std::min(read_bytes_.begin, span.begin);
  read_bytes_.end = std::max(read_bytes_.end, span.end);
}

void OutsideStorage::begin_write(const at::Tensor& tensor) {
  // A view's position in the graph follows from its base's: see ReplayMemory::shadow_of().
  written_ = std::make_shared<Written>(tensor.is_view() ? at::Tensor(tensor._base()) : tensor);
  if (PlaceholderStorage::is(tensor.storage())) written_->placeholder = tensor.storage();
}

TensorLayout OutsideStorage::whole() const {
  return TensorLayout::flat(size_bytes_, c10::kByte);
}

std::optional<TensorLayout> OutsideStorage::part_read() const {
  if (read_bytes_.empty()) return std::nullopt;
  return flat_part(read_bytes_);
}

std::optional<TensorLayout> OutsideStorage::part_to_keep(const at::Tensor& tensor) const {
  if (written_->knows_all) return std::nullopt;
  if (!has_layout(tensor)) return whole();
  TensorLayout layout = distinct_layout(tensor);
  const ByteRange span = span_of(layout);
  if (written_->known.contains(span)) return std::nullopt;
  const std::optional<ByteRuns> runs = runs_of(layout);
  if (!runs || runs->size() == 1 || overlaps_itself(layout)) return flat_part(span);
  const auto is_known = [&](const ByteRange& run) { return written_->known.contains(run); };
  if (std::all_of(runs->begin(), runs->end(), is_known)) return std::nullopt;
  return layout;
}

void OutsideStorage::keep(const c10::Storage& storage, const TensorLayout& part) {
  HeldStorage held;
  torch::autograd::SavedVariable value = keep_part(lay_out(storage, part), held);
  written_->parts.push_back({part, std::move(value), std::move(held)});
  cover(part);
}

void OutsideStorage::cover(const at::Tensor& tensor) {
  if (has_layout(tensor)) cover(TensorLayout(tensor));
}

void OutsideStorage::cover(const TensorLayout& layout) {
  if (written_->knows_all) return;
  for (const ByteRange& run : runs_of(layout).value_or(ByteRuns())) written_->known.add(run);
  if (written_->known.contains({0, size_bytes_})) cover_all();
}

void OutsideStorage::cover_all() {
  written_->knows_all = true;
  written_->known = {};
}

void OutsideStorage::drop_kept() {
  if (written_) written_->parts.clear();
}

void OutsideStorage::visit_kept(
    c10::function_ref<void(const TensorLayout&, const HeldStorage&)> visit) const {
  if (const auto bytes = handed_over()) visit(whole(), HeldStorage(*bytes));
  if (!written_) return;
  for (const Written::Part& part : written_->parts) visit(part.layout, part.storage);
}

const GraphPlace* OutsideStorage::place_before_write(const at::Tensor& tensor) const {
  const bool is_it =
      written_ && written_->base._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  return is_it ? &written_->place : nullptr;
}

at::Tensor OutsideStorage::unpack_kept() const {
  if (const auto bytes = handed_over()) return read_here(*bytes);
  if (!written_) return {};
  if (written_->placeholder) return lay_out(written_->placeholder, whole());
  const auto& parts = written_->parts;
  if (is_kept_whole()) return read_here(parts[0].value.unpack());
  const c10::Storage storage = empty_storage(size_bytes_, written_->device, written_->skipped);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const at::Tensor value = read_here(part->value.unpack());
    // An outer region's replay has put a placeholder here, because nobody reads these bytes.
    if (PlaceholderStorage::is(value.storage())) return lay_out(value.storage(), whole());
    put_part(storage, part->layout, value);
  }
  return lay_out(storage, whole());
}

/// True if the storage is kept in one part, without misalignment.
bool OutsideStorage::is_kept_whole() const {
  const auto& parts = written_->parts;
  return written_->skipped == 0 && parts.size() == 1 && parts[0].layout == whole();
}

bool OutsideStorage::unpacks_afresh() const {
  return !handed_over() && !is_kept_whole();
}

bool OutsideStorage::is_kept_copy(const at::Tensor& unpacked) const {
  const auto& parts = written_->parts;
  return parts.size() == 1 && parts[0].storage.address() == memory_of(unpacked);
}

const ByteRanges* OutsideStorage::known() const {
  return written_ && !written_->knows_all ? &written_->known : nullptr;
}

// Note [Writes after the region]: after the region, an op that this thread's scopes see may write a
// storage that the region has read and not written. The region then gets a copy of all bytes from
// before the write; regions that have no copy yet share this one. Replays of the region begin with
// these bytes, as if the region had written the storage itself. A write through `data`, which
// autograd does not notice, is different: plain code goes on with the new values in saved tensors,
// and with the old values in all that was computed before, so the replay raises.
void OutsideStorage::hand_over(std::shared_ptr<const at::Tensor> bytes) const {
  std::atomic_store(&handed_over_, std::move(bytes));
}

std::shared_ptr<const at::Tensor> OutsideStorage::handed_over() const {
  return std::atomic_load(&handed_over_);
}

void OutsideStorage::note_saved(const c10::Storage& storage) {
  if (is_argument_ || saved_bytes_ != 0) return;
  saved_bytes_ = hash_of_bytes(storage);
}

bool OutsideStorage::may_be_saved(const c10::Storage& storage) const {
  return saved_bytes_ == 0 || saved_bytes_ == hash_of_bytes(storage);
}

void OutsideStorage::mark_written_by_alias() const {
  std::atomic_ref(written_by_alias_).store(true, std::memory_order_relaxed);
}

void OutsideStorage::check_unchanged(const at::Tensor& tensor,
                                     c10::function_ref<std::string()> where) const {
  TORCH_CHECK(!storage_ || storage_->expired() ||
                  shard_version(*storage_->_unsafe_get_target()) == shard_version_,
              where(), ": expected a weight that is gathered from shards (", meta_.str(),
              ") as the forward read it, got one whose shard has been modified by an inplace "
              "operation since (an optimizer's step). Run backward before the step.");
  const bool by_op =
      std::atomic_ref(written_by_alias_).load(std::memory_order_relaxed) || version_.changed();
  TORCH_CHECK(
      by_op || !has_storage() || is_written() || has_bytes_of(tensor.storage()), where(),
      ": expected memory from outside the region (", meta_.str(),
      ") as the forward read it, got other bytes: the host has written it (numpy, a raw pointer), "
      "or an op in inference mode. Do not write it between forward and backward, or pass a clone.");
  TORCH_CHECK(!by_op && !version_.has_other_bytes(tensor), modified_in_place(meta_, version_),
              where(),
              ": expected the tensor from outside the region as the forward read it. Do not write "
              "it between forward and backward, or pass a clone.");
}

void OutsideStorage::check_inner(const at::Tensor& tensor, bool may_be_copy,
                                 c10::function_ref<std::string()> where) const {
  if (C10_LIKELY(!inner_)) return;
  inner_->check_unchanged(tensor, may_be_copy || is_argument_, where);
}

void OutsideStorage::check_size(c10::function_ref<std::string()> where) const {
  if (!storage_ || storage_->expired()) return;
  const size_t now = storage_->_unsafe_get_target()->nbytes();
  TORCH_CHECK_NOT_IMPLEMENTED(
      now == size_bytes_ || is_gathered(), where(), ": expected memory from outside the region (",
      meta_.str(), ") to keep its size, got a storage of ", size_bytes_, " bytes that has ", now,
      " at the end of the region: the function frees, fills or resizes it (FSDP's reshard, an "
      "offloader, an observer with its first batch), which a replay in backward would not do again "
      "as it was. ",
      kCheckpointInside, " What is resized once: run the function once before.");
}

bool OutsideStorage::is_gathered() const {
  return storage_ && gatherer_of(*storage_->_unsafe_get_target()) != nullptr;
}

void OutsideStorage::gather_again() const {
  if (!storage_ || size_bytes_ == 0) return;
  const auto storage = storage_->lock();
  if (!storage || storage->nbytes() >= size_bytes_) return;
  if (const MemoryGatherer gather = gatherer_of(*storage)) gather();
}

void OutsideLog::gather_again() const {
  for (const OutsideStorage& storage : storages_) storage.gather_again();
}

Origin OutsideLog::add(const at::Tensor& tensor) {
  storages_.emplace_back(tensor);
  return Origin::outside(storages_.size() - 1);
}

Origin OutsideLog::find(const void* address) const {
  const auto found =
      std::find_if(storages_.begin(), storages_.end(),
                   [&](const OutsideStorage& storage) { return storage.address() == address; });
  return found == storages_.end() ? Origin::unknown() : Origin::outside(found - storages_.begin());
}

Origin OutsideLog::find_wrapper(c10::ArrayRef<const void*> memories) const {
  const auto wrapper =
      std::find_if(storages_.begin(), storages_.end(),
                   [&](const OutsideStorage& storage) { return storage.consists_of(memories); });
  return wrapper == storages_.end() ? Origin::unknown()
                                    : Origin::outside(wrapper - storages_.begin());
}

void OutsideLog::finish() {
  sets_grads_ = std::any_of(storages_.begin(), storages_.end(), [](const OutsideStorage& storage) {
    return !storage.has_first_grad();
  });
}

void OutsideLog::add_captured(const at::Tensor& tensor) {
  if (captured_known_.contains(tensor.unsafeGetTensorImpl())) return;
  captured_known_.add(tensor.unsafeGetTensorImpl());
  captured_.emplace_back(tensor.getIntrusivePtr());  // Weak, but the address is not reused.
}

std::vector<at::Tensor> OutsideLog::captured() const {
  std::vector<at::Tensor> alive;
  const auto append = [&](const OutsideStorage::WeakTensor& known) {
    at::Tensor tensor(known.lock());
    if (tensor.defined() && tensor.requires_grad()) alive.push_back(std::move(tensor));
  };
  for (const OutsideStorage& storage : storages_) append(storage.first_tensor());
  std::for_each(captured_.begin(), captured_.end(), append);
  return alive;
}

}  // namespace remat
