// SPDX-License-Identifier: BSD-3-Clause

// The slots of a region, what is kept for its replays, and the table of all regions.
#include <remat/engine/region.h>

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <remat/engine/op_call.h>
#include <remat/engine/region_label.h>
#include <remat/engine/result_aliases.h>
#include <remat/engine/scope.h>
#include <remat/engine/stream_use.h>
#include <remat/engine/taken_gradients.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/unversioned_writes.h>

namespace remat {
namespace {

std::atomic<uint64_t> last_region_id{0};

/// All regions by id, guarded by regions_mutex(). Leaked, because regions may outlive static
/// objects.
std::map<uint64_t, Region*>& all_regions() {
  static auto& regions = *new std::map<uint64_t, Region*>;
  return regions;
}
std::mutex& regions_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

/// The oldest region with an id above `id`; null if there is none.
std::shared_ptr<Region> find_region_after(uint64_t id) {
  const std::lock_guard<std::mutex> lock(regions_mutex());
  for (auto entry = all_regions().upper_bound(id); entry != all_regions().end(); ++entry) {
    // Null for a region that is being destroyed.
    if (auto shared = entry->second->weak_from_this().lock()) return shared;
  }
  return nullptr;
}

thread_local std::vector<uint64_t> closed_here;  // Ids of regions.

/// Notes that this thread has closed the region: see take_closed_here().
void note_closed_region(uint64_t id) {
  constexpr size_t kFew = 256;
  if (closed_here.capacity() == 0) closed_here.reserve(kFew);
  if (closed_here.size() == closed_here.capacity())  // Forget dead regions before it grows.
    std::erase_if(closed_here, [](uint64_t closed) { return !find_region(closed); });
  closed_here.push_back(id);
}

/// True if `value` is on the memory that `slot` saved, and somebody else holds that memory, too.
bool is_saved_memory(const Slot& slot, const at::Tensor& value) {
  if (!slot.memory || slot.memory != memory_of(value)) return false;
  // If nobody else holds the memory, the replay allocated it at a reused address.
  return !value.has_storage() || value.storage().use_count() > 1;
}

}  // namespace

std::vector<std::shared_ptr<const Region>> live_regions() {
  std::vector<std::shared_ptr<const Region>> live;
  const std::lock_guard<std::mutex> lock(regions_mutex());
  for (const auto& [id, region] : all_regions()) {
    if (auto shared = region->weak_from_this().lock()) live.push_back(std::move(shared));
  }
  return live;
}

std::vector<uint64_t> take_closed_here() {
  return closed_here.empty() ? std::vector<uint64_t>() : std::exchange(closed_here, {});
}

std::shared_ptr<const Region> find_region(uint64_t id) {
  const std::lock_guard<std::mutex> lock(regions_mutex());
  const auto entry = all_regions().find(id);
  return entry == all_regions().end() ? nullptr : entry->second->weak_from_this().lock();
}

uint64_t youngest_region() {
  return last_region_id;
}

void end_regions_of_replay(uint64_t replay_id, uint64_t after) noexcept {
  if (youngest_region() == after) return;
  while (const std::shared_ptr<Region> region = find_region_after(after)) {
    after = region->id();
    if (region->made_in_replay() == replay_id) region->end_with_replay();
  }
}

std::shared_ptr<Region> Region::make(Options options) {
  struct Made : Region {  // Region's constructor is private.
    explicit Made(Options of) : Region(std::move(of)) {}
  };
  const auto region = std::make_shared<Made>(std::move(options));
  const std::lock_guard<std::mutex> lock(regions_mutex());
  all_regions().emplace(region->id(), region.get());
  return region;
}

Region::Region(Options options)
    : options_(std::move(options)),
      id_(++last_region_id),
      made_in_replay_(Scope::current_replay()),
      passes_(*this) {
  if (options_.op_site) op_sites_ = std::make_unique<OpSites>(options_.op_site);
}

Region::~Region() {
  const std::lock_guard<std::mutex> lock(regions_mutex());
  all_regions().erase(id_);
}

bool NodeRange::contains(const torch::autograd::Node& node) const {
  return node.thread_id() == thread && node.sequence_nr() >= begin && node.sequence_nr() < end;
}

std::string Region::label() const {
  return region_label(name());
}

CallLog& Region::calls() {
  if (!calls_) calls_ = std::make_unique<CallLog>();
  return *calls_;
}

const CallLog& Region::calls() const {
  static const CallLog& none = *new CallLog;
  return calls_ ? *calls_ : none;
}

Slot& Region::add_slot(const at::Tensor& tensor) {
  Slot& slot = slots_.emplace_back(slots_.size(), tensor);
  ++live_count_;
  if (C10_UNLIKELY(streams_.changed())) {
    mark_switches_streams();
    note_stream_use(tensor);
  }
  return slot;
}

void Region::add_memory_of_others(const Slot& slot, ForwardMemory memory) {
  memory_of_others_.emplace_back(slot.index, std::move(memory));
}

const ForwardMemory* Region::memory_of_others(const Slot& slot) const {
  const auto entry =
      std::lower_bound(memory_of_others_.begin(), memory_of_others_.end(), slot.index,
                       [](const auto& memory, size_t index) { return memory.first < index; });
  const bool is_it = entry != memory_of_others_.end() && entry->first == slot.index;
  return is_it ? &entry->second : nullptr;
}

void Region::set_results(c10::ArrayRef<at::Tensor> results) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const at::Tensor& result : results) {
    if (result.defined()) results_.push_back(result.unsafeGetTensorImpl()->version_counter());
  }
}

bool Region::has_result(const c10::VariableVersion& versions) const {
  const void* const counter = version_counter_of(versions);
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(results_.begin(), results_.end(), [&](const c10::VariableVersion& result) {
    return version_counter_of(result) == counter;
  });
}

void Region::close() {
  ops_.finish();
  if (calls_) calls_->finish(early_stop() && !options_.is_cut ? slots_.size() : ~size_t{0});
  live_end_ = slots_.size();
  std::erase_if(memory_of_others_, [](const auto& memory) {
    return memory.second.is_gone() && !memory.second.is_hooked();
  });
  memory_of_others_.shrink_to_fit();
  closed_ = true;
  note_closed_region(id_);
  if (live_count_ == 0 && !options_.is_cut) release_unneeded();
}

std::shared_ptr<const Replayer> Region::replayer() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return replayer_;
}

at::Tensor Region::load(const Slot& slot) {
  check_version(slot);
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->before_load(*this, slot.index);
  at::Tensor value = passes_.load(slot);
  if (value.defined()) {
    check_not_freed(slot, value);
    if (C10_UNLIKELY(marks_.switches_streams)) note_stream_use(value);
    note_given_to_node(value);
  }
  return value;
}

// Kept products stay during a replay, as another thread may free the last slots that need them.
void Region::begin_replay() {
  if (!calls_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++replays_;
}

void Region::end_replay() {
  if (!calls_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --replays_;
  }
  if (closed_ && !options_.is_cut) release_unneeded();
}

ReplayedSlots Region::replay() {
  begin_replay();
  const auto ends = c10::make_scope_exit([this] { end_replay(); });
  const KeptStreams on_streams_of_forward(streams_);
  ReplayedSlots values(slots_.size());
  running_replayer()->replay(*this, values);
  for (const Slot& slot : slots_) {
    at::Tensor& value = values[slot.index];
    if (value.defined()) value = shared_value(slot, std::move(value));
  }
  return values;
}

/// Returns what backward gets for the replayed `value`: see Note [Memory that others hold]. A
/// replay's values have their own version counters. But a write to memory that others hold also
/// writes what was saved. Other slots on the memory must notice that write, and tensors that a
/// graph of the backward (`create_graph`) saves must notice later writes. So values on such memory
/// get the saved tensor's counter.
at::Tensor Region::shared_value(const Slot& slot, at::Tensor value) const {
  const ForwardMemory* const memory = memory_of_others(slot);
  const bool is_shared =
      memory && !memory->is_hooked() && !memory->is_gone() && change_of(slot).empty();
  const auto where = [&] { return c10::str("[replay] ", label(), ", slot ", slot.index); };
  // Not compared where the region's options allow the replay's values to differ.
  const bool is_compared =
      determinism() != Determinism::kNone && is_exact() && intercept() && preserve_rng();
  const at::Tensor expected = is_compared ? value : at::Tensor();
  at::Tensor saved = is_shared ? memory->lock(slot.meta, expected, where) : at::Tensor();
  if (saved.defined()) value = std::move(saved);
  if (is_saved_memory(slot, value)) slot.version.give_to(value);
  return value;
}

void Region::note_kept(const KeptTensor& kept, const at::Tensor& value, bool is_hooked) {
  passes_.note_kept(kept, value, is_hooked);
}

void Region::replay_for_backward() {
  if (live_count_ > 0) passes_.replay();
}

void Region::release(Slot& slot) noexcept {
  slot.live = false;
  const bool none_live = --live_count_ == 0;
  if (options_.is_unit && !none_live) {
    if (const std::shared_ptr<const Replayer> by = replayer()) by->slot_released(slot.index);
  }
  if (closed_ && (none_live || calls_)) release_unneeded();
  passes_.release(slot.index);
}

size_t Region::live_end(size_t end) const {
  while (end > 0 && !slots_[end - 1].live) --end;
  return end;
}

// Gives up what only slots after the last live one need, because no replay gets that far.
void Region::release_unneeded() noexcept {
  std::shared_ptr<const Replayer> replayer;  // All three are destroyed after the lock is released.
  std::vector<CallProduct::Held> values;
  std::vector<GradBefore> grads;
  const std::lock_guard<std::mutex> lock(mutex_);
  live_end_ = live_end(live_end_);
  if (live_end_ == 0) {
    replayer = std::move(replayer_);
    grads = std::move(inner_backwards_.grads_before);
  }
  if (calls_ && replays_ == 0 && (early_stop() || live_end_ == 0))
    values = calls_->release_from(live_end_);
}

bool Region::keeps_for_replays() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_ && calls_ && replays_ == 0 && !options_.is_cut && calls_->keeps_for_replays();
}

std::vector<CallProduct::Held> Region::release_products() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_ ? calls_->release_from(0) : std::vector<CallProduct::Held>();
}

// Drops a replayer that calls a function, because the function may own a tensor of the replay,
// whose graph owns this region. A replayer with a tape has no function, so it stays.
void Region::end_with_replay() noexcept {
  std::shared_ptr<const Replayer> replayer;  // Destroyed after the lock is released.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (replayer_ && !replayer_->tape()) replayer = std::move(replayer_);
}

std::shared_ptr<const Replayer> Region::running_replayer() const {
  std::shared_ptr<const Replayer> replayer = this->replayer();
  TORCH_CHECK(replayer, graph_of_replay(label()));
  return replayer;
}

std::vector<CallProduct::Held> Region::kept_products() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<CallProduct::Held> held;
  held.reserve(calls().products().size());
  for (const CallProduct& product : calls().products()) held.push_back(product.held());
  return held;
}

CallProduct::Held Region::kept_product(size_t number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls().product(number).held();
}

void Region::check_not_freed(const Slot& slot, const at::Tensor& value) const {
  TORCH_CHECK(!is_freed(value), "[replay] ", label(), ", slot ", slot.index, " (", slot.meta.str(),
              "): ", kMemoryFreed, kGiveMemoryBack);
}

/// A message about the change to the memory that `slot` saved; empty if it is unchanged.
std::string Region::change_of(const Slot& slot) const {
  const SavedVersion& version = slot.version;
  if (C10_UNLIKELY(version.changed())) {
    return c10::str(
        modified_in_place(slot.meta, version), "[replay] ", label(), ", slot ", slot.index,
        ": expected the tensor as the forward saved it. Do not write it between forward and "
        "backward, or save a clone. Hint: anomaly detection finds the operation that failed to "
        "compute its gradient.");
  }
  if (C10_UNLIKELY(slot.inner) && slot.inner->changed()) {
    return c10::str(
        "one of the variables needed for gradient computation has been modified by an "
        "inplace operation: a tensor in one of a Python class of its own. [replay] ",
        label(), ", slot ", slot.index, " (", slot.meta.str(),
        "): expected what is in the tensor as the forward saved it. Do not write it "
        "between forward and backward, or save a clone.");
  }
  const auto slot_is = [&](const auto&... what) {
    return c10::str("[replay] ", label(), ", slot ", slot.index, " (", slot.meta.str(),
                    "): ", what...);
  };
  if (const OpInfo* const op = UnversionedWrites::find_after(version.writes(), version.counter())) {
    return slot_is(
        "expected the tensor as the forward saved it, got one that ", op->name(),
        " has written since, without a new version: autograd would go on with what it wrote, "
        "a replay with what was saved. Run that op after backward, or give the region a "
        "clone() of the tensor (of batch norm's running statistics, of an optimizer's "
        "weight).");
  }
  const auto now = memory_now(version);
  if (now == MemoryNow::kElsewhere) return slot_is(kMemoryExchanged);
  return changed_by_alias(version) ? slot_is(kResultChanged) : std::string();
}

void Region::check_version(const Slot& slot) const {
  const std::string change = change_of(slot);
  TORCH_CHECK(change.empty(), change);
}

}  // namespace remat
