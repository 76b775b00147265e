// SPDX-License-Identifier: BSD-3-Clause

// Handles of custom functions.
#include <remat/backend/remat_handle.h>

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

namespace remat {
namespace {

thread_local detail::OpContext* current_op = nullptr;

}  // namespace

RematHandle::RematHandle(torch::autograd::AutogradContext* ctx, NamedCall call,
                         c10::ArrayRef<at::Tensor> arguments, SavingState saving)
    : ctx_(ctx), call_(std::move(call)), saving_(std::move(saving)) {
  TORCH_CHECK_VALUE(ctx_, "[get_handle] ", call_.str(),
                    ": ctx: expected the context that forward() was given, got null.");
  if (!detail::is_in_region()) return;
  scope_ = std::make_unique<detail::NamedCallScope>(call_, arguments);
  skipped_ = scope_->is_skipped();
}

RematHandle::~RematHandle() = default;

std::optional<torch::autograd::variable_list> RematHandle::maybe_load_saved() {
  if (!skipped_ || !scope_) return std::nullopt;
  const auto& tensors = scope_->results().tensors;
  torch::autograd::variable_list results(tensors.begin(), tensors.end());
  scope_.reset();
  return results;
}

void RematHandle::check_loaded(const char* what) const {
  TORCH_CHECK(
      !skipped_, "[get_handle] ", call_.str(), ": ", what,
      ": expected forward() to return what maybe_load_saved() gives it in the replay of a "
      "SAVE call, must call maybe_load_saved; got a forward() that goes on. Write: if (auto "
      "saved = handle.maybe_load_saved()) return (*saved)[0];");
}

at::Tensor RematHandle::save_or_load_inputs(const at::Tensor& input) {
  check_loaded("save_or_load_inputs");
  if (scope_ && !scope_->is_saved()) recompute_needs_tensor(input);
  return input;
}

void RematHandle::save_for_backward(std::initializer_list<NamedTensor> tensors) {
  save_for_backward(c10::ArrayRef<NamedTensor>(tensors.begin(), tensors.size()));
}

void RematHandle::save_for_backward(c10::ArrayRef<NamedTensor> tensors) {
  check_loaded("save_for_backward");
  torch::autograd::variable_list list;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(!name.empty() && name.find('.') == std::string::npos &&
                          std::find(names.begin(), names.end(), name) == names.end(),
                      "[get_handle] ", call_.str(), ": save_for_backward: name '", name,
                      "': expected names that are not empty, have no dot and are used once.");
    names.push_back(name);
    list.push_back(tensor);
  }
  ctx_->save_for_backward(list);
  if (scope_) scope_->expect_saved(names, list, saving_);
}

at::Tensor RematHandle::record_outputs(const at::Tensor& output) {
  return record_outputs(torch::autograd::variable_list{output})[0];
}

torch::autograd::variable_list RematHandle::record_outputs(torch::autograd::variable_list outputs) {
  check_loaded("record_outputs");
  if (!scope_) return outputs;
  scope_->check_innermost(call_);
  CallResults results;
  results.tensors.append(outputs.begin(), outputs.end());
  scope_->finish(results);
  scope_.reset();
  return outputs;
}

RematHandle get_handle(torch::autograd::AutogradContext* ctx, std::string name, Policy policy,
                       Keep keep) {
  NamedCall call{.name = std::move(name), .policy = policy, .keep = keep, .saved_names = {}};
  detail::check_call_name(call, "get_handle");
  return {ctx, std::move(call), {}, nullptr};
}

RematHandle get_handle(torch::autograd::AutogradContext* ctx) {
  detail::OpContext* const context = detail::OpContext::current();
  if (!detail::is_in_region()) {
    return {ctx, NamedCall{.name = "outside of regions", .saved_names = {}}, {}, nullptr};
  }
  TORCH_CHECK_VALUE(
      context,
      "[get_handle] expected to be called in the forward() of a function that is "
      "called by op<Function>(name, policy)(args...), got another caller. Call it so, "
      "or give get_handle() a name and a policy.");
  context->mark_used();
  return {ctx, context->call(), context->arguments(), [lifetime = context->lifetime()] {
            return Saving{lifetime.expired() ? Saving::State::kDone : Saving::State::kMaybe};
          }};
}

namespace detail {

void check_saved_names(const NamedCall& call) {
  for (auto name = call.saved_names.begin(); name != call.saved_names.end(); ++name) {
    TORCH_CHECK_VALUE(!name->empty() && std::find(call.saved_names.begin(), name, *name) == name,
                      "[op] ", call.str(),
                      ": saved_names: expected names that are not empty and "
                      "are used once, got '",
                      *name, "'.");
  }
}

OpContext::OpContext(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments)
    : call_(call), arguments_(arguments), outer_(std::exchange(current_op, this)) {}

OpContext::~OpContext() {
  current_op = outer_;
}

std::weak_ptr<const bool> OpContext::lifetime() {
  if (!lifetime_) lifetime_ = std::make_shared<const bool>(true);
  return lifetime_;
}

OpContext* OpContext::current() {
  return current_op;
}

void OpContext::check_used() const {
  TORCH_CHECK_VALUE(used_, "[op] ", call_.str(),
                    ": expected a function that lists its saved_names or calls get_handle(ctx) in "
                    "forward(), got one that does neither, so that no policy could be carried out. "
                    "Add one of them, or use native_op().");
}

}  // namespace detail
}  // namespace remat
