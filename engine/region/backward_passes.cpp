// SPDX-License-Identifier: BSD-3-Clause

// Choosing the replay that a backward pass gets its values from.
#include <remat/engine/backward_passes.h>

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <thread>
#include <utility>

#include "given_values.h"

#include <remat/engine/blocking_wait.h>
#include <remat/engine/region.h>
#include <remat/engine/scope.h>

namespace remat {
namespace {

bool has_value(const ReplayedSlots& values, size_t index) {
  return index < values.size() && values[index].defined();
}

at::Tensor take(ReplayedSlots& values, size_t index) {
  return has_value(values, index) ? std::move(values[index]) : at::Tensor();
}

}  // namespace

struct BackwardPasses::Pass {
  enum class State { kNew, kRunning, kDone };

  explicit Pass(int task) : graph_task(task) {}

  const int graph_task;
  State state = State::kNew;
  std::thread::id runner{};  // Set while the replay runs.
  std::condition_variable done;
  ReplayedSlots values;
  const std::shared_ptr<GivenValues> given = GivenValues::of_task(graph_task);
  const bool is_retained = torch::autograd::get_current_graph_task_keep_graph();
};

class BackwardPasses::PassEnd {
 public:
  PassEnd(std::weak_ptr<Region> region, BackwardPasses& passes, const std::shared_ptr<Pass>& pass)
      : region_(std::move(region)), passes_(passes), pass_(pass) {}
  PassEnd(const PassEnd&) = delete;
  PassEnd& operator=(const PassEnd&) = delete;
  ~PassEnd() { end(); }

  /// Call it when the graph task has succeeded.
  void check() const {
    const std::shared_ptr<Region> region = region_.lock();
    const std::shared_ptr<Pass> pass = pass_.lock();
    if (region && pass) pass->given->check_at_end(pass->is_retained);
  }

  void end() noexcept {
    const std::shared_ptr<Region> region = region_.lock();
    const std::shared_ptr<Pass> pass = pass_.lock();
    if (region && pass) passes_.forget(pass.get());
  }

 private:
  std::weak_ptr<Region> region_;
  BackwardPasses& passes_;  // Owned by the region, so valid while the region lives.
  std::weak_ptr<Pass> pass_;
};

at::Tensor BackwardPasses::load(const Slot& slot) {
  const int graph_task = torch::autograd::get_current_graph_task_id();
  if (graph_task < 0) {
    // Code that inspects the graph has unpacked the slot outside backward, so there is no graph
    // task to key a pass by.
    check_not_replaying_here();
    std::unique_lock<std::mutex> lock(mutex_);
    if (last_) return (*last_)[slot.index];
    lock.unlock();
    ReplayedSlots values = region_.replay();
    return take(values, slot.index);
  }
  const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
  const std::shared_ptr<Pass> pass = replayed(graph_task, &slot);
  const ForwardMemory* const memory = region_.memory_of_others(slot);
  const bool is_hooked = memory && memory->is_hooked();
  const auto hooked = !is_hooked          ? GivenValues::Hooked::kNo
                      : memory->is_gone() ? GivenValues::Hooked::kByCopy
                                          : GivenValues::Hooked::kByOthers;
  const std::lock_guard<std::mutex> lock(mutex_);
  at::Tensor value = last_        ? (*last_)[slot.index]
                     : keep_graph ? take(pass->values, slot.index)
                                  : pass->values[slot.index];
  if (!value.defined()) return value;
  const RegionSaved saved{.region = region_, .slot = &slot};
  pass->given->check_read(saved, memory_of(value));
  const bool may_be_written = is_hooked || !slot.op;
  if (may_be_written) pass->given->add(saved, value, hooked);
  return value;
}

void BackwardPasses::note_kept(const KeptTensor& kept, const at::Tensor& value, bool is_hooked) {
  const int graph_task = torch::autograd::get_current_graph_task_id();
  if (graph_task < 0) return;
  std::unique_lock<std::mutex> lock(mutex_);
  const std::shared_ptr<GivenValues> given = find_or_add(graph_task)->given;
  lock.unlock();
  const RegionSaved saved{.region = region_, .kept = &kept};
  // Under hooks others always count as having the memory, because a reference of theirs cannot be
  // told from a store's.
  given->add(saved, value, is_hooked ? GivenValues::Hooked::kByOthers : GivenValues::Hooked::kNo);
}

void BackwardPasses::replay() {
  replayed(torch::autograd::get_current_graph_task_id(), nullptr);
}

void BackwardPasses::release(size_t index) noexcept {
  if (count_ == 0) return;
  c10::SmallVector<at::Tensor, 2> values;  // Destroyed after the lock is released.
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& pass : passes_) {
    // Only a pass that is done has a value to free here. A new pass has none. The values of a
    // running pass belong to its thread, which skips dead slots; the pass's end frees the rest.
    if (pass->state == Pass::State::kDone) values.push_back(take(pass->values, index));
  }
  if (last_) values.push_back(take(*last_, index));
}

std::shared_ptr<BackwardPasses::Pass> BackwardPasses::replayed(int graph_task, const Slot* wanted) {
  check_not_replaying_here();
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::shared_ptr<Pass> pass = find_or_add(graph_task);
    if (wanted) pass->given->check_read({.region = region_, .slot = wanted}, nullptr);
    if (last_) return pass;
    if (pass->state == Pass::State::kRunning) {
      check_not_replaying(pass->runner != std::this_thread::get_id());
      lock.unlock();
      wait_for(*pass);
      continue;
    }
    const bool handed_over =
        wanted && pass->state == Pass::State::kDone && !has_value(pass->values, wanted->index);
    if (pass->state == Pass::State::kDone && !handed_over) return pass;
    pass->state = Pass::State::kRunning;
    pass->runner = std::this_thread::get_id();
    lock.unlock();
    run(*pass);
    return pass;
  }
}

std::shared_ptr<BackwardPasses::Pass> BackwardPasses::find_or_add(int graph_task) {
  for (const auto& pass : passes_) {
    if (pass->graph_task == graph_task) return pass;
  }
  auto pass = std::make_shared<Pass>(graph_task);
  auto end = std::make_shared<PassEnd>(region_.weak_from_this(), *this, pass);
  torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->check();
    end->end();
  });
  passes_.push_back(pass);
  ++count_;
  return pass;
}

void BackwardPasses::run(Pass& pass) {
  ReplayedSlots values;
  std::exception_ptr error;
  try {
    values = region_.replay();
  } catch (...) {
    error = std::current_exception();
  }
  std::vector<CallProduct::Held> unneeded;  // Destroyed after the lock is released.
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error && is_last(values)) {
      last_ = std::move(values);
      ++count_;
      unneeded = region_.release_products();
    } else if (!error) {
      std::swap(pass.values, values);
    }
    pass.state = error ? Pass::State::kNew : Pass::State::kDone;
  }
  pass.done.notify_all();
  if (error) std::rethrow_exception(error);
}

/// True if no replay can follow and values are kept for replays, which can then be freed.
bool BackwardPasses::is_last(const ReplayedSlots& values) const {
  const bool is_kept = torch::autograd::get_current_graph_task_keep_graph();
  if (is_kept || passes_.size() > 1 || !region_.keeps_for_replays()) return false;
  return std::all_of(region_.slots().begin(), region_.slots().end(),
                     [&](const Slot& slot) { return !slot.live || has_value(values, slot.index); });
}

void BackwardPasses::wait_for(Pass& pass) {
  blocking_wait([&] {
    std::unique_lock<std::mutex> lock(mutex_);
    pass.done.wait(lock, [&] { return pass.state != Pass::State::kRunning; });
  });
}

void BackwardPasses::forget(const Pass* pass) noexcept {
  std::shared_ptr<Pass> forgotten;  // Destroyed after the lock is released.
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto position =
      std::find_if(passes_.begin(), passes_.end(), [&](const auto& p) { return p.get() == pass; });
  if (position == passes_.end()) return;
  forgotten = std::move(*position);
  passes_.erase(position);
  --count_;
}

void BackwardPasses::check_not_replaying_here() const {
  for (const Scope* scope = Scope::current(); scope; scope = scope->previous()) {
    check_not_replaying(scope->replay_id() == 0 || scope->region() != &region_);
  }
}

void BackwardPasses::check_not_replaying(bool holds) const {
  TORCH_CHECK(holds, "[replay] ", region_.label(),
              ": expected its function to finish its replay, got a backward through this same "
              "region inside it. Do not call backward or grad, in the region's function, on a "
              "result of the region itself.");
}

}  // namespace remat
