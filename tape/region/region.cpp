// SPDX-License-Identifier: BSD-3-Clause

// Slots of a region, and the passes that fill them: one per region and graph task.
#include <remat/tape/region.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include <remat/tape/blocking_wait.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region_label.h>
#include <remat/tape/result_aliases.h>
#include <remat/tape/scope.h>
#include <remat/tape/tensor_layout.h>
#include <remat/tape/unversioned_writes.h>

#include "exchanged_memory.h"
#include "graph_of_replay.h"
#include "region_registry.h"
#include "taken_gradients.h"

namespace remat {
namespace {

/// True if `value` is on the memory that was saved, which somebody else has.
bool is_saved_memory(const Slot& slot, const at::Tensor& value) {
  if (!slot.memory || slot.memory != memory_of(value)) return false;
  // What nobody else has was made by the replay, at an address that was free again.
  return !value.has_storage() || value.storage().use_count() > 1;
}

}  // namespace

// Note [Passes]: replayed values belong to one run of backward, so they are keyed by its graph
// task. A graph that is not kept frees each value with the node that held it; a kept graph hands
// each value over when its node asks for it, and replays again should a node ask twice. What is
// left goes when the graph task ends, by success or by exception: the engine then destroys the
// callbacks it was given, PassEnd among them.
struct Region::Pass {
  enum class State { kNew, kRunning, kDone };

  explicit Pass(int task) : graph_task(task) {}

  /// A value that backward has got for a slot whose memory others had, and hooks may have copied.
  struct Hooked {
    const Slot* slot;
    c10::VariableVersion version;  // of the value
    uint32_t before;

    bool is_written() const {
      return version.current_version() != before || slot->version.changed();
    }
  };

  void note_hooked(std::shared_ptr<const Region> of, const Slot& slot, const at::Tensor& value) {
    if (value.is_inference()) return;
    region = std::move(of);
    const c10::VariableVersion& version = value.unsafeGetTensorImpl()->version_counter();
    hooked.push_back({&slot, version, version.current_version()});
  }

  const int graph_task;
  State state = State::kNew;
  std::thread::id runner{};  // while it runs
  ReplayedSlots values{0};
  std::vector<Hooked> hooked;
  std::shared_ptr<const Region> region;  // of these, until the pass ends
};

class Region::PassEnd {
 public:
  PassEnd(std::weak_ptr<Region> region, const std::shared_ptr<Pass>& pass)
      : region_(std::move(region)), pass_(pass) {}
  PassEnd(const PassEnd&) = delete;
  PassEnd& operator=(const PassEnd&) = delete;
  ~PassEnd() { end(); }

  /// The graph task has succeeded.
  void check() const {
    const std::shared_ptr<Region> region = region_.lock();
    const std::shared_ptr<Pass> pass = pass_.lock();
    if (region && pass) region->check_hooked(*pass);
  }

  void end() noexcept {
    const std::shared_ptr<Region> region = region_.lock();
    const std::shared_ptr<Pass> pass = pass_.lock();
    if (region && pass) region->forget(pass.get());
  }

 private:
  std::weak_ptr<Region> region_;
  std::weak_ptr<Pass> pass_;
};

Region::Region(Options options)
    : options_(std::move(options)),
      id_(RegionRegistry::add(*this)),
      made_in_replay_(Scope::current_replay()) {
  if (options_.op_site) op_sites_ = std::make_unique<OpSites>(options_.op_site);
}

Region::~Region() {
  RegionRegistry::remove(id_);
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

Slot::Slot(size_t position, const at::Tensor& tensor)
    : index(position), meta(tensor), version(tensor), memory(memory_of(tensor)) {}

Slot& Region::add_slot(const at::Tensor& tensor) {
  Slot& slot = slots_.emplace_back(slots_.size(), tensor);
  ++live_count_;
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
  std::erase_if(memory_of_others_, [](const auto& memory) { return memory.second.is_gone(); });
  memory_of_others_.shrink_to_fit();
  closed_ = true;
  RegionRegistry::note_closed(id_);
  if (live_count_ == 0 && !options_.is_cut) release_unneeded();
}

std::shared_ptr<const Replayer> Region::replayer() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return replayer_;
}

at::Tensor Region::load(const Slot& slot) {
  check_version(slot);
  const int graph_task = torch::autograd::get_current_graph_task_id();
  if (graph_task < 0) {
    // Asked for outside backward, by somebody who looks at the graph: nothing to key a pass by.
    check_not_replaying_here();
    return replay().take(slot.index);
  }
  const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
  const std::shared_ptr<Pass> pass = replayed_pass(graph_task, &slot);
  const ForwardMemory* const memory = memory_of_others(slot);
  const bool others_have_it = memory && memory->is_hooked() && !memory->is_gone();
  at::Tensor value;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    value = keep_graph ? pass->values.take(slot.index) : pass->values.get(slot.index);
    if (others_have_it && value.defined()) pass->note_hooked(shared_from_this(), slot, value);
  }
  if (value.defined()) {
    check_not_freed(slot, value);
    TakenGradients::note_given(value);
  }
  return value;
}

ReplayedSlots Region::replay() {
  ReplayedSlots values(slots_.size());
  running_replayer()->replay(*this, values);
  for (const Slot& slot : slots_) {
    if (values.has(slot.index)) values.put(slot.index, shared_value(slot, values.take(slot.index)));
  }
  return values;
}

/// What backward gets for `value` of a replay: see Note [Memory that others hold]. A replay gives
/// it with versions of its own. Of memory that others have a write to it is one to what was saved:
/// other slots on it are to notice it, and what the graph of a backward (`create_graph`) has saved
/// of it later writes.
at::Tensor Region::shared_value(const Slot& slot, at::Tensor value) const {
  const ForwardMemory* const memory = memory_of_others(slot);
  const bool is_shared =
      memory && !memory->is_hooked() && !memory->is_gone() && change_of(slot).empty();
  const auto where = [&] { return c10::str("[replay] ", label(), ", slot ", slot.index); };
  // Otherwise a replay may make other values: its user has said so.
  const bool is_compared = determinism() != Determinism::kNone && intercept() && preserve_rng();
  const at::Tensor expected = is_compared ? value : at::Tensor();
  at::Tensor saved = is_shared ? memory->lock(slot.meta, expected, where) : at::Tensor();
  if (saved.defined()) value = std::move(saved);
  if (is_saved_memory(slot, value)) slot.version.give_to(value);
  return value;
}

void Region::replay_for_backward() {
  if (live_count_ > 0) replayed_pass(torch::autograd::get_current_graph_task_id(), nullptr);
}

void Region::release(Slot& slot) noexcept {
  slot.live = false;
  const bool none_live = --live_count_ == 0;
  if (closed_ && (none_live || calls_)) release_unneeded();
  if (pass_count_ == 0) return;
  c10::SmallVector<at::Tensor, 2> values;  // destroyed after the lock is gone
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& pass : passes_) {
    // A running pass is its runner's; it sees that the slot is dead, or its end frees the value.
    if (pass->state == Pass::State::kDone) values.push_back(pass->values.take(slot.index));
  }
}

size_t Region::live_end(size_t end) const {
  while (end > 0 && !slots_[end - 1].live) --end;
  return end;
}

// A replay goes up to the last live slot, if there is one.
void Region::release_unneeded() noexcept {
  std::shared_ptr<const Replayer> replayer;  // destroyed after the lock is gone, as are these
  std::vector<CallProduct::Held> values;
  std::vector<GradBefore> grads;
  const std::lock_guard<std::mutex> lock(mutex_);
  live_end_ = live_end(live_end_);
  if (live_end_ == 0) {
    replayer = std::move(replayer_);
    grads = std::move(grads_before_);
  }
  if (calls_ && (early_stop() || live_end_ == 0)) values = calls_->release_from(live_end_);
}

// A tape runs no function, and no object of the user's can hold itself through it.
void Region::end_with_replay() noexcept {
  std::shared_ptr<const Replayer> replayer;  // destroyed after the lock is gone
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

std::shared_ptr<Region::Pass> Region::replayed_pass(int graph_task, const Slot* wanted) {
  check_not_replaying_here();
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::shared_ptr<Pass> pass = find_or_add_pass(graph_task);
    if (pass->state == Pass::State::kRunning) {
      check_not_replaying(pass->runner != std::this_thread::get_id());
      lock.unlock();
      wait_for(*pass);
      continue;
    }
    const bool handed_over =
        wanted && pass->state == Pass::State::kDone && !pass->values.has(wanted->index);
    if (pass->state == Pass::State::kDone && !handed_over) return pass;
    pass->state = Pass::State::kRunning;
    pass->runner = std::this_thread::get_id();
    lock.unlock();
    run_pass(pass);
    return pass;
  }
}

std::shared_ptr<Region::Pass> Region::find_or_add_pass(int graph_task) {
  for (const auto& pass : passes_) {
    if (pass->graph_task == graph_task) return pass;
  }
  auto pass = std::make_shared<Pass>(graph_task);
  auto end = std::make_shared<PassEnd>(weak_from_this(), pass);
  torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->check();
    end->end();
  });
  passes_.push_back(pass);
  ++pass_count_;
  return pass;
}

void Region::run_pass(const std::shared_ptr<Pass>& pass) {
  ReplayedSlots values(0);
  std::exception_ptr error;
  try {
    values = replay();
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(pass->values, values);
    pass->state = error ? Pass::State::kNew : Pass::State::kDone;
  }
  pass_done_.notify_all();
  if (error) std::rethrow_exception(error);
}

void Region::wait_for(const Pass& pass) {
  blocking_wait([&] {
    std::unique_lock<std::mutex> lock(mutex_);
    pass_done_.wait(lock, [&] { return pass.state != Pass::State::kRunning; });
  });
}

void Region::forget(const Pass* pass) noexcept {
  std::shared_ptr<Pass> forgotten;  // destroyed after the lock is gone
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto position =
      std::find_if(passes_.begin(), passes_.end(), [&](const auto& p) { return p.get() == pass; });
  if (position == passes_.end()) return;
  forgotten = std::move(*position);
  passes_.erase(position);
  --pass_count_;
}

void Region::check_hooked(const Pass& pass) const {
  for (const Pass::Hooked& hooked : pass.hooked) {
    const Slot& slot = *hooked.slot;
    TORCH_CHECK_NOT_IMPLEMENTED(
        !hooked.is_written(), "[replay] ", label(), ", slot ", slot.index, " (", slot.meta.str(),
        "), saved by ", slot.op ? slot.op->name() : "a custom function",
        ": expected that nobody writes in backward what the region has saved under saved-tensor "
        "hooks, got a write to it, or to the forward's memory of it, which somebody else has (an "
        "attribute of a custom function's context, the region's result). Hooks that copy part the "
        "two, others do not, and remat cannot know. Write a clone() in backward, or open no hooks "
        "there.");
  }
}

void Region::check_not_replaying_here() const {
  for (const Scope* scope = Scope::current(); scope; scope = scope->previous()) {
    check_not_replaying(scope->replayed_region() != this);
  }
}

void Region::check_not_replaying(bool holds) const {
  TORCH_CHECK(holds, "[replay] ", label(),
              ": expected its function to finish its replay, got a backward through this same "
              "region inside it. Do not call backward or grad, in the region's function, on a "
              "result of the region itself.");
}

void Region::check_not_freed(const Slot& slot, const at::Tensor& value) const {
  TORCH_CHECK(!is_freed(value), "[replay] ", label(), ", slot ", slot.index, " (", slot.meta.str(),
              "): ", kMemoryFreed, kGiveMemoryBack);
}

/// What has become of the memory that `slot` saved; empty if it is as the forward saved it.
std::string Region::change_of(const Slot& slot) const {
  const SavedVersion& version = slot.version;
  if (C10_UNLIKELY(version.changed())) {
    return c10::str(
        modified_in_place(slot.meta, version), "[replay] ", label(), ", slot ", slot.index,
        ": expected the tensor as the forward saved it. Do not write it between forward and "
        "backward, or save a clone. Hint: anomaly detection finds the operation that failed to "
        "compute its gradient.");
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
  const auto now = ExchangedMemory::find(version);
  if (now == ExchangedMemory::Now::kElsewhere) return slot_is(kMemoryExchanged);
  return ResultAliases::changed(version) ? slot_is(kResultChanged) : std::string();
}

void Region::check_version(const Slot& slot) const {
  const std::string change = change_of(slot);
  TORCH_CHECK(change.empty(), change);
}

}  // namespace remat
