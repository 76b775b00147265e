// SPDX-License-Identifier: BSD-3-Clause

// Running a region's function again and picking up what autograd saves.
#include <remat/tape/function_replayer.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <remat/tape/region.h>
#include <remat/tape/replay_mismatch.h>
#include <remat/tape/saved_tensor_frame.h>

#include "leaf_grads.h"
#include "turn.h"

namespace remat {
namespace {

/// Ends a replay from inside the user's function. No std::exception: user code that handles errors
/// must not take it for one.
struct StopReplay {};

/// The scope of a replay: gives each tensor that autograd saves to the slot at the same place in
/// the forward's order.
class ReplayFrame final : public SavedTensorFrame {
 public:
  ReplayFrame(const Region& region, ReplayedSlots& values)
      : SavedTensorFrame(Phase::kReplay),
        region_(region),
        values_(values),
        end_(needed_end(region)) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    return std::make_unique<Hook>(*this);
  }
  const Region* replayed_region() const override { return &region_; }
  void before_accumulate(const EdgeList& roots) override { leaf_grads_.set_aside(roots); }
  void after_backward() override {
    if (stopped_) stop();
  }

  /// True once every needed slot is filled and the function was told to stop: what escapes from it
  /// then is the stop.
  bool stopped() const { return stopped_; }

  bool failed() const { return error_ != nullptr; }

  /// Raises what went wrong although the function has returned: a mismatch that it caught, or slots
  /// that it did not reach.
  void check_complete() const {
    if (error_) std::rethrow_exception(error_);
    if (count_ >= end_) return;
    const Slot& slot = region_.slots()[count_];
    mismatch(slot.index, slot.meta.str(), "the end of the function",
             c10::str("The forward saved ", region_.slots().size(), " tensors, the replay ", count_,
                      "."));
  }

 private:
  class Hook final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hook(ReplayFrame& frame) : frame_(frame) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      value_ = tensor.tensor_data();
      frame_.receive(tensor, value_);
    }
    // Asked by a backward inside the region's function: the replay answers from its own graph.
    at::Tensor call_unpack_hook() override { return value_; }

   private:
    ReplayFrame& frame_;  // dead once the replay has ended; used while packing only
    at::Tensor value_;
  };

  static size_t needed_end(const Region& region) {
    size_t end = region.slots().size();
    while (end > 0 && !region.slots()[end - 1].live) --end;
    return end;
  }

  void receive(const at::Tensor& tensor, const at::Tensor& value) {
    if (stopped_) return stop();  // the function caught the stop and went on
    // A backward inside the function replays what the open region has saved so far; its replay may
    // get further.
    if (!region_.closed() && count_ >= region_.slots().size()) return;
    try {
      check(tensor);
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
    const size_t index = count_++;
    if (index < end_ && region_.slots()[index].live) values_.put(index, value);
    if (region_.early_stop() && count_ >= end_) stop();
  }

  // Note [Stopping inside a backward]: autograd's engine handles only std::exceptions; another one
  // that leaves a node would leave the engine's queues and depth counts as they were in the middle
  // of the task. If a backward inside the function saves the last tensor, the stop waits until it
  // has ended.
  void stop() {
    stopped_ = true;
    const bool in_inner_backward = torch::autograd::get_current_graph_task_id() != graph_task_;
    const bool in_destructor = std::uncaught_exceptions() != uncaught_exceptions_;
    if (!in_inner_backward && !in_destructor) throw StopReplay{};
  }

  void check(const at::Tensor& tensor) const {
    if (count_ >= region_.slots().size()) {
      mismatch(count_, "the end of the function", TensorMeta(tensor).str(),
               "The replay saved more tensors.");
    }
    const Slot& slot = region_.slots()[count_];
    // The very tensor that the forward saved, written since: other slots that are made from it
    // would be wrong in silence.
    TORCH_CHECK(!slot.version.changed_in(tensor),
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: [",
                slot.meta.str(), "] ", slot.version.str(), ". [replay] ", region_.label(),
                ", slot ", slot.index,
                ": expected the tensor from outside the region as the forward saved it. Do not "
                "write it in the region or between forward and backward, or use a clone.");
    if (region_.determinism() == Determinism::kNone || slot.meta.matches(tensor)) return;
    const TensorMeta got(tensor);
    const std::string place =
        slot.meta.matches_data(tensor)
            ? c10::str("It had ", slot.meta.place_str(), "; now ", got.place_str(), ".")
            : std::string();
    mismatch(slot.index, slot.meta.str(), got.str(), place);
  }

  [[noreturn]] void mismatch(size_t index, const std::string& expected, const std::string& got,
                             const std::string& detail) const {
    throw ReplayMismatch(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        c10::str("[replay] ", region_.label(), ", slot ", index, ": expected ", expected,
                 " as in the forward, got ", got, ". ", detail, detail.empty() ? "" : " ",
                 "The function did something else when it ran again: state that it reads has "
                 "changed (a training or requires_grad flag, a cache, a counter, a random number "
                 "not from a generator of LibTorch). Make it depend on its arguments, or keep that "
                 "state with a StateHook."));
  }

  const Region& region_;
  ReplayedSlots& values_;
  const size_t end_;  // one past the last live slot
  const int graph_task_ = torch::autograd::get_current_graph_task_id();
  const int uncaught_exceptions_ = std::uncaught_exceptions();
  size_t count_ = 0;
  bool stopped_ = false;
  std::exception_ptr error_;
  LeafGrads leaf_grads_;
};

/// Exchanges the user's state for that of region entry, and back.
class UserStateExchange {
 public:
  UserStateExchange(const std::vector<std::shared_ptr<StateHook>>& hooks,
                    const std::vector<std::any>& entry)
      : hooks_(hooks), entry_(entry) {
    SuspendFrames suspend;
    present_.reserve(hooks_.size());
    for (const auto& hook : hooks_) present_.push_back(hook->snapshot());
  }

  void begin() {
    SuspendFrames suspend;
    for (const auto i : c10::irange(hooks_.size())) {
      begun_ = i + 1;
      hooks_[i]->restore(entry_[i]);
    }
  }

  /// Undoes what begin() did, also if that threw. Returns the first error of a hook, after all of
  /// them have run.
  std::exception_ptr end() {
    SuspendFrames suspend;
    std::exception_ptr error;
    for (; begun_ > 0; --begun_) {
      try {
        hooks_[begun_ - 1]->restore(present_[begun_ - 1]);
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    return error;
  }

 private:
  const std::vector<std::shared_ptr<StateHook>>& hooks_;
  const std::vector<std::any>& entry_;
  std::vector<std::any> present_;
  size_t begun_ = 0;
};

/// Says where `error` comes from, unless it says so itself or there is no memory left to say it
/// with.
void add_region(c10::Error& error, const Region& region, const ReplayFrame& frame) {
  if (frame.failed() || dynamic_cast<c10::OutOfMemoryError*>(&error)) return;
  error.add_context(c10::str("[replay] ", region.label(), ": raised when its function ran again"));
}

}  // namespace

FunctionReplayer::FunctionReplayer(std::unique_ptr<const RegionBody> body,
                                   c10::ArrayRef<at::Tensor> inputs, const Options& options)
    : body_(std::move(body)),
      thread_state_(ThreadState::read()),
      state_hooks_(options.state_hooks) {
  inputs_.reserve(inputs.size());
  for (const auto i : c10::irange(inputs.size())) {
    // A tensor that is passed twice is one tensor in the replay too.
    const auto* const first =
        std::find_if(inputs.begin(), inputs.begin() + i,
                     [&](const at::Tensor& other) { return other.is_same(inputs[i]); });
    const size_t position = first - inputs.begin();
    first_position_.push_back(position);
    inputs_.emplace_back(i, position == i ? inputs[i] : at::Tensor());
  }
  if (options.preserve_rng) generators_ = read_generators(options.generators);
  SuspendFrames suspend;
  for (const auto& hook : state_hooks_) states_.push_back(hook->snapshot());
}

void FunctionReplayer::finish_forward(const Region& region) {
  drop_current(generators_);
  if (region.slots().empty()) return;
  for (const RegionInput& input : inputs_) input.check_not_written_inside(region.label());
}

void FunctionReplayer::replay(const Region& region, ReplayedSlots& slots) const {
  // First: this may replay outer regions, which must not find this one's state.
  std::vector<at::Tensor> inputs;
  inputs.reserve(inputs_.size());
  for (const auto i : c10::irange(inputs_.size())) {
    inputs.push_back(first_position_[i] == i ? inputs_[i].replayed(region.label())
                                             : inputs[first_position_[i]]);
  }
  const ArgumentHooks hooks(inputs);

  std::optional<Turn> turn;
  if (!state_hooks_.empty() || !generators_.empty()) turn.emplace();
  UserStateExchange user_state(state_hooks_, states_);
  std::exception_ptr error;
  try {
    user_state.begin();
    run_body(region, inputs, slots);
  } catch (...) {
    error = std::current_exception();
  }
  const std::exception_ptr hook_error = user_state.end();
  if (error) std::rethrow_exception(error);
  if (hook_error) std::rethrow_exception(hook_error);
}

void FunctionReplayer::run_body(const Region& region, c10::ArrayRef<at::Tensor> inputs,
                                ReplayedSlots& slots) const {
  const ReplayThreadState thread_state(thread_state_);
  const ReplayGenerators generators(generators_);
  ReplayFrame frame(region, slots);
  try {
    body_->run(inputs);
  } catch (c10::Error& error) {
    if (!frame.stopped()) {
      add_region(error, region, frame);
      throw;
    }
  } catch (std::exception&) {
    if (!frame.stopped()) throw;
  } catch (...) {
    // Autograd's engine would not survive it.
    TORCH_CHECK(frame.stopped(), "[replay] ", region.label(),
                ": expected its function to throw std::exceptions only when it runs again, got "
                "something else. Throw a std::exception.");
  }
  frame.check_complete();
}

}  // namespace remat
