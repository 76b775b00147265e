// SPDX-License-Identifier: BSD-3-Clause

// Leaving SAVE calls out of a replay.
#include "replay_calls.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include <remat/engine/hidden_scopes.h>
#include <remat/engine/replay_mismatch.h>
#include <remat/engine/stream_use.h>

#include <ATen/ops/alias.h>
#include <ATen/ops/as_strided.h>

#include <remat/engine/unseen.h>

namespace remat {
namespace {

/// Node of a call that a replay left out.
class SkippedCallNode final : public torch::autograd::Node {
 public:
  explicit SkippedCallNode(std::string where) : where_(std::move(where)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*grads*/) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, where_,
        ": expected a backward inside the region's function that does not pass this call, which "
        "does not run again, got one that does. Give the call the policy RECOMPUTE.");
  }
  std::string name() const override { return "RematSkippedCall"; }

 private:
  std::string where_;
};

}  // namespace

std::string ReplayCalls::where(const CallRecord& record) const {
  return c10::str("[replay] ", region_.label(), ", ", record.call.str());
}

bool ReplayCalls::takes_ops() const {
  return progress_.is_own_code() && progress_.is_watched();
}

bool ReplayCalls::knows_next_op() const {
  return region_.early_stop() && region_.closed() && progress_.compares() &&
         comparison_.is_before_last_op();
}

NamedCalls::Action ReplayCalls::begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) {
  if (!takes_ops()) {
    open_.push_back(nullptr);
    return Action::kRun;
  }
  if (progress_.stopped()) {
    progress_.stop();
    open_.push_back(nullptr);  // stop() returns if an exception is already leaving the function.
    return Action::kRun;
  }
  return progress_.or_fail_unless_users([&] { return begin_recorded(call, arguments); });
}

void ReplayCalls::compare(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) {
  SeenTensors seen;
  for (const at::Tensor& argument : arguments) {
    if (argument.defined()) seen.push_back(memory_.see(argument, memory_of(argument)));
  }
  write_call(comparison_.words(), call.hash(), seen, region_);
  comparison_.compare(seen, progress_.slot_count(), &call);
}

NamedCalls::Action ReplayCalls::begin_recorded(const NamedCall& call,
                                               c10::ArrayRef<at::Tensor> arguments) {
  if (progress_.compares()) compare(call, arguments);
  if (is_past_forward()) {
    open_.push_back(nullptr);
    return Action::kRun;
  }
  const CallRecord& record = next_record(call);
  if (call.is_saved() && !record.ended && !record.threw) {  // The forward is still in this call.
    fill_slots(record, arguments);
    open_.push_back(nullptr);
    return Action::kRun;
  }
  if (call.is_saved() && !record.threw) check_arguments(record, arguments);
  open_.push_back(&record);
  if (call.is_saved()) progress_.look_away();
  if (!call.is_saved() || record.threw) return Action::kRun;
  arguments_.assign(arguments.begin(), arguments.end());
  return Action::kSkip;
}

std::vector<at::Tensor> ReplayCalls::to_write() {
  std::vector<at::Tensor> tensors;
  for (const CallWrite& write : open_.back()->writes) {
    const at::Tensor tensor =
        write.is_outside ? memory_.outside_bytes(write.number) : arguments_[write.argument];
    if (tensor.defined()) tensors.push_back(tensor);
  }
  return tensors;
}

CallResults ReplayCalls::results() {
  const CallRecord& record = *open_.back();
  open_.pop_back();
  progress_.watch_again();
  const std::vector<at::Tensor> arguments = std::move(arguments_);
  arguments_.clear();
  return progress_.or_fail([&] { return skip(record, arguments); });
}

bool ReplayCalls::is_past_forward() const {
  return !region_.closed() && next_ == region_.calls().records().size();
}

const CallRecord& ReplayCalls::next_record(const NamedCall& call) {
  const auto& records = region_.calls().records();
  // A function that has called is_recomputing() need not repeat RECOMPUTE calls in a replay.
  while (comparison_.has_ended() && next_ < records.size() && !records[next_].call.is_saved() &&
         records[next_].call.name != call.name) {
    ++next_;
  }
  const NamedCall* const expected = next_ < records.size() ? &records[next_].call : nullptr;
  if (!expected || expected->name != call.name || expected->policy != call.policy)
    comparison_.call_mismatch(expected, call, progress_.slot_count());
  return records[next_++];
}

// The op log has compared the arguments already, unless the comparison has ended.
void ReplayCalls::check_arguments(const CallRecord& record,
                                  c10::ArrayRef<at::Tensor> arguments) const {
  const auto check = [&](size_t number, size_t size_bytes) {
    const bool fits = number < arguments.size() && arguments[number].defined() &&
                      arguments[number].has_storage() &&
                      (size_bytes == 0 || arguments[number].storage().nbytes() == size_bytes);
    if (fits) return;
    throw ReplayMismatch(c10::str(where(record), ": expected tensor argument ", number,
                                  " as in the forward, since what it holds is needed, got ",
                                  number < arguments.size() ? "another one" : "fewer arguments",
                                  ". Pass the same tensors in every run."));
  };
  for (const ArgumentView& refill : record.refills) check(refill.argument, 0);
  for (const CallOutput& output : record.outputs) {
    if (output.source == CallOutput::Source::kArgument && !output.is_argument_itself)
      check(output.view.argument, 0);
    if (output.is_argument_itself && output.view.argument >= arguments.size())
      check(output.view.argument, 0);
  }
  for (const CallWrite& write : record.writes) {
    if (!write.is_outside)
      check(write.argument, region_.calls().product(write.product).size_bytes());
  }
}

CallResults ReplayCalls::skip(const CallRecord& record, c10::ArrayRef<at::Tensor> arguments) {
  node_ = nullptr;
  fill_slots(record, arguments);
  apply_writes(record, arguments);
  CallResults results;
  for (const auto i : c10::irange(record.outputs.size())) {
    const CallOutput& output = record.outputs[i];
    results.tensors.push_back(output.same_as < static_cast<size_t>(i)
                                  ? results.tensors[output.same_as]
                                  : make_output(record, output, arguments));
  }
  results.holder = record.holder;
  restore_state(record);
  return results;
}

void ReplayCalls::fill_slots(const CallRecord& record, c10::ArrayRef<at::Tensor> arguments) {
  for (const auto i : c10::irange(record.refills.size())) {
    const ArgumentView& refill = record.refills[i];
    const at::Tensor& argument = arguments[refill.argument];
    refill.check(argument, [&] { return where(record); });
    progress_.fill(record.first_slot + i, refill.of(argument));
  }
  progress_.stop_if_complete();
}

void ReplayCalls::apply_writes(const CallRecord& record, c10::ArrayRef<at::Tensor> arguments) {
  for (const CallWrite& write : record.writes) {
    if (C10_UNLIKELY(region_.switches_streams()))
      wait_for_start_of_replay(region_.calls().product(write.product).device(), region_.streams());
    if (write.is_outside) {
      const at::Tensor& value = products_.value_of(write.product);
      if (value.defined()) memory_.put_outside(write.number, value);
    } else {
      const at::Tensor& argument = arguments[write.argument];
      products_.put_inside(argument.storage(), write.product);
      if (!argument.is_inference()) argument.unsafeGetTensorImpl()->bump_version();
    }
    if (!write.requires_grad || write.argument >= arguments.size()) continue;
    const at::Tensor argument = memory_.stand_in(arguments[write.argument]);
    if (!argument.requires_grad()) put_written_in_graph(record, argument);
  }
}

at::Tensor ReplayCalls::make_output(const CallRecord& record, const CallOutput& output,
                                    c10::ArrayRef<at::Tensor> arguments) {
  if (output.source == CallOutput::Source::kUndefined) return {};
  at::Tensor tensor;
  if (output.source == CallOutput::Source::kProduct) {
    tensor = products_.on_product(output.product, output.layout);
  } else {
    if (output.is_argument_itself) return arguments[output.view.argument];
    const at::Tensor argument = memory_.stand_in(arguments[output.view.argument]);
    output.view.check(argument, [&] { return where(record); });
    tensor = output.is_view ? view_of(argument, output) : output.view.of(argument);
  }
  if (!output.requires_grad || tensor.requires_grad()) return tensor;
  put_in_graph(record, tensor);
  if (output.has_node) return tensor;
  // The forward made this view with grad mode off: it requires grad like its base, but has no node.
  const Unseen unseen;
  const c10::AutoGradMode grad(false);
  return at::alias(tensor);
}

// Makes the view under the forward's grad mode. A view made with grad mode off has no node, but
// requires grad if its base does.
at::Tensor ReplayCalls::view_of(const at::Tensor& argument, const CallOutput& output) {
  const TensorLayout layout = output.view.layout_on(argument);
  const bool is_plain = layout.dtype == argument.scalar_type() &&
                        layout.conjugated == argument.is_conj() &&
                        layout.negated == argument.is_neg();
  if (!is_plain) return output.view.of(argument);
  const Unseen unseen;
  const c10::AutoGradMode grad(output.has_node || !output.requires_grad);
  return at::as_strided(argument, layout.sizes, layout.strides, layout.offset);
}

// Puts `argument` behind a node of the skipped call, as an in-place op would. If `argument` is a
// view, its base and the base's other views change, too.
void ReplayCalls::put_written_in_graph(const CallRecord& record, const at::Tensor& argument) {
  const auto* const meta = torch::autograd::impl::get_view_autograd_meta(argument);
  const bool is_view = meta && meta->has_bw_view() &&
                       meta->get_creation_meta() == torch::autograd::CreationMeta::DEFAULT;
  if (!is_view) return put_in_graph(record, argument);
  const Unseen unseen;
  const NodePtr node = make_node<SkippedCallNode>(where(record));
  node->add_input_metadata(argument);
  rebase_new_history(argument, node);
}

void ReplayCalls::put_in_graph(const CallRecord& record, at::Tensor tensor) {
  if (node_) return torch::autograd::set_history(tensor, node_);
  node_ = make_node<SkippedCallNode>(where(record));
  set_new_history(tensor, node_);
}

void ReplayCalls::restore_state(const CallRecord& record) {
  for (const GeneratorState& generator : record.generators) generator.restore();
  const SuspendScopes suspend;
  for (const auto i : c10::irange(record.states.size())) {
    state_hooks_[i]->restore(record.states[i]);
  }
}

void ReplayCalls::end(const CallResults& /*results*/) {
  const CallRecord* const record = open_.back();
  if (!record || !record->call.is_saved()) {
    open_.pop_back();
    return;
  }
  // The caller calls abandon() next.
  const ReplayMismatch error(
      c10::str(where(*record),
               ": expected the exception that it threw in the forward, got a result. Make what it "
               "does depend on its arguments."));
  progress_.fail(std::make_exception_ptr(error));
  throw error;
}

void ReplayCalls::abandon() noexcept {
  const CallRecord* const record = open_.back();
  open_.pop_back();
  if (!record || !record->call.is_saved()) return;
  progress_.watch_again();
  arguments_.clear();
  progress_.pass_slots(record->refills.size());
}

void ReplayCalls::check_complete() const {
  const auto& records = region_.calls().records();
  if (next_ < records.size() && !comparison_.has_ended())
    comparison_.call_missing(records[next_].call, progress_.slot_count());
}

}  // namespace remat
