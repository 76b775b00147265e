// SPDX-License-Identifier: BSD-3-Clause

// Finding the regions that a named call belongs to.
#include <remat/backend/named_call_scope.h>

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include <remat/backend/name_scope.h>
#include <remat/backend/native_op.h>
#include <remat/engine/named_calls.h>
#include <remat/engine/region.h>
#include <remat/engine/region_policy.h>
#include <remat/engine/scope.h>

#include "private_use_fallback.h"

namespace remat::detail {
namespace {

/// Installs the fallback on PrivateUse1, once. If another library has one, no placeholders exist,
/// so all results of SAVE calls are kept.
void prepare_placeholders() {
  [[maybe_unused]] static const bool prepared = [] {
    try {
      install_private_use_fallback();
    } catch (const c10::NotImplementedError& error) {
      placeholders_work = false;
      TORCH_WARN(
          "[native_op] the dispatch key PrivateUse1 is taken, so every result of a SAVE call "
          "is kept: ",
          error.what_without_backtrace());
    }
    return true;
  }();
}

void trace(const TraceScope& before, const NamedCall& call, std::string_view what) {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->named_call(before, Scope::current_trace_scope(), call, what);
}

void trace_end(bool threw) {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->call_ended(Scope::current_trace_scope(), threw);
}

TraceScope scope_if_traced() {
  return trace_sink ? Scope::current_trace_scope() : TraceScope();
}

/// The scopes that record `call`, the outermost first.
c10::SmallVector<NamedCalls*, 2> scopes_of(const NamedCall& call) {
  c10::SmallVector<NamedCalls*, 2> scopes;
  for (Scope* scope = Scope::innermost_with_calls(); scope; scope = scope->next_to_see_ops()) {
    NamedCalls* const calls = scope->named_calls();
    if (!calls) continue;
    scopes.insert(scopes.begin(), calls);
    if (call.keep == Keep::kInnermostRegion || calls->is_replay()) break;
  }
  return scopes;
}

thread_local detail::NamedCallScope* innermost = nullptr;

/// Throws inside a torch.func transform, because a placeholder would be needed at each level of the
/// nested transforms.
void check_no_transform(const NamedCall& call) {
  constexpr auto key = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;
  if (call.is_op || !c10::impl::tls_is_dispatch_key_included(key)) return;
  const Region* const region = Scope::current_trace_scope().region;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[native_op] ", region ? region->label() + ", " : "", call.str(),
      ": expected to be called outside of torch.func's transforms, got a call inside of one (vmap, "
      "grad, ...). Put the transform into the function of the call, or RECOMPUTE.");
}

NamedCall renumbered(const NamedCall& op, NamedCalls& calls) {
  NamedCall call = op;
  call.name = op.collective + '#' + std::to_string(calls.count_op(op.collective));
  return call;
}

}  // namespace

bool is_in_region() {
  const Scope* const scope = Scope::current() ? Scope::innermost_with_calls() : nullptr;
  return scope && !scope->has_plain_calls();
}

void check_call_name(const NamedCall& call, const char* where) {
  TORCH_CHECK_VALUE(!call.name.empty(), "[", where,
                    "] name: expected a name, must be non-empty, got an empty one. Name the call "
                    "after what it computes.");
}

void name_saved(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors) {
  if (is_in_region()) Scope::innermost_with_calls()->named_calls()->name_saved(names, tensors);
}

NamedCallScope::NamedCallScope(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments)
    : outer_(std::exchange(innermost, this)), region_(Scope::innermost_with_calls()) {
  try {
    const RegionPolicy* const policy = Scope::current()->policy();
    if (NameScope::is_open() || policy) {
      NamedCall scoped = call;
      if (NameScope::is_open()) scoped.name = NameScope::full_name(call.name);
      if (policy && !call.is_op) scoped.policy = policy->of_call(scoped.name).value_or(call.policy);
      begin(scoped, arguments);
    } else {
      begin(call, arguments);
    }
  } catch (...) {
    abandon_all();
    leave();
    throw;
  }
}

void NamedCallScope::begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) {
  is_saved_ = call.is_saved();
  if (is_saved_) {
    check_no_transform(call);
    prepare_placeholders();
  }
  const TraceScope before = scope_if_traced();
  const c10::SmallVector<NamedCalls*, 2> scopes = scopes_of(call);
  for (NamedCalls* const calls : scopes) {
    // Each region numbers its own collectives, as a replay of an inner region counts from 0.
    const bool has_own_name = !call.collective.empty() && calls != scopes.back();
    const NamedCalls::Action action =
        calls->begin(has_own_name ? renumbered(call, *calls) : call, arguments);
    open_.push_back(calls);
    if (action == NamedCalls::Action::kSkip) skipped_ = true;
  }
  if (skipped_) skip(arguments);
  trace(before, call, skipped_ ? "is left out" : "begins");
}

// The outermost scope skips the call. Inner scopes record the call with the memory it writes and
// the random numbers it draws, because replays of inner regions may skip the call later.
void NamedCallScope::skip(c10::ArrayRef<at::Tensor> arguments) {
  NamedCalls* const skipping = open_.front();
  const std::vector<at::Tensor> writes = skipping->to_write();
  for (auto calls = open_.begin() + 1; calls != open_.end(); ++calls) {
    (*calls)->before_skip(writes, arguments);
  }
  open_.erase(open_.begin());
  results_ = skipping->results();
  finish(results_);
}

NamedCallScope::~NamedCallScope() {
  try {
    if (!open_.empty()) trace_end(/*threw=*/true);
  } catch (...) {  // The sink threw while the call's exception propagates, which takes precedence.
  }
  abandon_all();
  leave();
}

bool NamedCallScope::is_innermost() const {
  return innermost == this && Scope::innermost_with_calls() == region_;
}

void NamedCallScope::check_innermost(const NamedCall& call) const {
  TORCH_CHECK(is_innermost(), "[get_handle] ", call.str(),
              ", record_outputs: expected to be called in forward() itself, got it called in a "
              "named call or a region inside, or on another thread. Call it after those, on the "
              "thread of forward().");
}

void NamedCallScope::leave() noexcept {
  NamedCallScope** scope = &innermost;
  while (*scope && *scope != this) scope = &(*scope)->outer_;
  if (*scope) *scope = outer_;
}

void NamedCallScope::abandon_all() noexcept {
  for (auto calls = open_.rbegin(); calls != open_.rend(); ++calls) (*calls)->abandon();
}

void NamedCallScope::expect_saved(const std::vector<std::string>& names,
                                  c10::ArrayRef<at::Tensor> tensors, const SavingState& saving) {
  for (NamedCalls* const calls : open_) calls->expect_saved(names, tensors, saving);
}

void NamedCallScope::finish(const CallResults& results) {
  while (!open_.empty()) {
    open_.back()->end(results);
    open_.pop_back();
  }
  if (!skipped_) trace_end(/*threw=*/false);
}

}  // namespace remat::detail

namespace remat {

void recompute_needs_tensor(c10::ArrayRef<at::Tensor> tensors) {
  for (Scope* scope = Scope::current(); scope; scope = scope->next_to_see_ops()) {
    NamedCalls* const calls = scope->named_calls();
    if (!calls) continue;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) calls->need(tensor);
    }
  }
}

}  // namespace remat
