// SPDX-License-Identifier: BSD-3-Clause

// Finding the ended call for which autograd saves a tensor.
#include "expected_saves.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>

#include <remat/engine/op_call.h>
#include <remat/engine/saved_tensors_hooks.h>

namespace remat {
namespace {

using State = Saving::State;

uint32_t version_of(const at::Tensor& tensor) {
  const bool has_version = tensor.defined() && !tensor.is_inference();
  return has_version ? static_cast<uint32_t>(tensor._version()) : 0;
}

}  // namespace

void ExpectedSaves::expect(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors,
                           const SavingState& saving) {
  abandon_call();
  if (!saving && tensors.empty()) return;
  of_running_ = Expected{.saving = saving, .tensors = tensors.vec(), .names = names};
}

void ExpectedSaves::end_call(SavedCall& running) {
  if (!of_running_) return;
  Expected& expected = calls_.emplace_back(*std::exchange(of_running_, {}));
  expected.call = std::move(running);
  expected.next_node = at::sequence_number::peek();
  for (const at::Tensor& tensor : expected.tensors) expected.versions.push_back(version_of(tensor));
}

/// True if autograd saves `tensor` for the call. If the call records no graph, autograd saves
/// nothing for it, but a later node may save the tensor. So without `saving`, the answer is no if
/// a node has been made since the call ended; a custom function's own node does not count, because
/// it is made before forward() runs.
bool ExpectedSaves::Expected::takes(const at::Tensor& tensor) {
  if (is_packing) return false;  // User code is running in a pack hook.
  const bool is_next_node = at::sequence_number::peek() == next_node;
  const Saving now = saving ? saving() : Saving{is_next_node ? State::kMaybe : State::kDone};
  if (now.state == State::kNow) {
    if (now.count != tensors.size()) return false;  // The code has run again and set up ctx anew.
    position = now.position;
  } else if (now.state == State::kMaybe) {
    while (position < tensors.size() && !tensors[position].defined()) ++position;
  } else {
    return false;
  }
  return is_at_position(tensor);
}

bool ExpectedSaves::Expected::is_at_position(const at::Tensor& tensor) const {
  if (position >= tensors.size() || !tensors[position].defined()) return false;
  return tensors[position].is_same(tensor) || memory_of(tensors[position]) == memory_of(tensor);
}

SavedCall* ExpectedSaves::call_that_saves(const at::Tensor& tensor) {
  if (calls_.empty()) return nullptr;
  const auto last = std::find_if(calls_.rbegin(), calls_.rend(),
                                 [&](Expected& expected) { return expected.takes(tensor); });
  if (last != calls_.rend() && !packs_region_input()) return &last->call;
  end();
  return nullptr;
}

void ExpectedSaves::end(bool by_op) noexcept {
  for (size_t i = calls_.size(); i-- > 0;) {
    if (i >= calls_.size() || calls_[i].is_packing) continue;  // Destructors may shorten the list.
    const SavingState& saving = calls_[i].saving;
    const State state = saving ? saving().state : State::kDone;
    if (state == State::kNotYet || (by_op && state == State::kMaybe)) continue;
    end_at(i);
  }
}

void ExpectedSaves::end_at(size_t i) noexcept {
  Expected ended = std::move(calls_[i]);
  calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(i));
  drop_unseen(std::move(ended));
}

ExpectedSaves::Expected* ExpectedSaves::find(const SavedCall& call) {
  const auto found = std::find_if(calls_.begin(), calls_.end(), [&](const Expected& expected) {
    return &expected.call == &call;
  });
  return found == calls_.end() ? nullptr : &*found;
}

const std::string& ExpectedSaves::next_name(const SavedCall& call) {
  Expected& expected = *find(call);
  return expected.names[expected.position++];
}

bool ExpectedSaves::is_written(const SavedCall& call) {
  const Expected& expected = *find(call);
  return version_of(expected.tensors[expected.position]) != expected.versions[expected.position];
}

void ExpectedSaves::begin_pack(const SavedCall& call) {
  if (Expected* const expected = find(call)) expected->is_packing = true;
}

void ExpectedSaves::end_pack(size_t call, bool has_failed) noexcept {
  for (size_t i = calls_.size(); i-- > 0;) {
    if (calls_[i].call.index != call) continue;
    calls_[i].is_packing = false;
    if (has_failed) return end_at(i);
  }
}

}  // namespace remat
