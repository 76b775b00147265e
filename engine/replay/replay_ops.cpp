// SPDX-License-Identifier: BSD-3-Clause

// The steps of an op in a replay.
#include "replay_ops.h"
#include <remat/engine/op_writer.h>

#include <c10/util/irange.h>

#include <remat/engine/autocast_cache.h>
#include <remat/engine/stream_use.h>
#include <remat/engine/tensor_layout.h>

namespace remat {

void ReplayOps::before_op(OpCall& call, bool logged) {
  if (!region_.intercept()) return;
  if (C10_UNLIKELY(region_.switches_streams())) streams_.note();
  progress_.begin_op(call);
  const bool is_cast = is_cacheable_cast(call);
  op_ = {.is_compared = logged && progress_.compares() && !is_cast && is_written_down(call),
         .is_cast = is_cast,
         .made = origin_of_results(call.info())};
  progress_.or_fail_unless_users([&] { check(call); });
  if (C10_UNLIKELY(call.info().writes())) progress_.note_written(call);
  if (C10_UNLIKELY(op_.is_compared && comparison_.is_past_last_op())) progress_.note_last_op(call);
  if (C10_UNLIKELY(region_.switches_streams())) note_stream_use(call);
}

void ReplayOps::check(OpCall& call) {
  const SeenTensors seen = look_at_arguments(call);
  // Views compute nothing, so settings do not matter for them.
  const bool computes = op_.is_compared && !call.info().is_plain_view();
  const uint64_t settings = computes ? region_.settings().changed(call) : 0;
  OpWords* const words = op_.is_compared ? &comparison_.words() : nullptr;
  write_op(words, call, seen, settings, region_, memory_.storages());
  // Compared first, because a different op explains more than a different tensor.
  if (words) comparison_.compare(seen, progress_.slot_count());
  if (op_.touches_product || op_.touches_outside) check_touched(call);
}

SeenTensors ReplayOps::look_at_arguments(const OpCall& call) {
  SeenTensors seen;
  for (const OpTensor& entry : call.tensors()) {
    const at::Tensor& tensor = *entry.tensor;
    if (C10_UNLIKELY(!entry.memory))
      memory_.check_not_freed(call, entry.argument, tensor, progress_.slot_count());
    seen.push_back(memory_.see(tensor, entry.memory));
    const SeenTensor& given = seen.back();
    const Origin origin = given.origin;
    memory_.storages().note_write(call, entry.argument, tensor, origin);
    if (origin.is_outside() || origin.is_unknown()) op_.touches_outside = true;
    if (origin.is_product()) op_.touches_product = true;
    if (origin.is_unknown() && call.info().is_plain_view()) op_.views_unknown = has_layout(tensor);
    if (C10_UNLIKELY(op_.is_cast) && entry.argument == 0)
      op_.made = Origin::cast_of(origin, layout_hash(tensor, given.moved));
    // Comes before the comparison of values. What the region has overwritten is in the shadow.
    if (op_.is_compared && origin.is_outside() &&
        shows_host_value(call, entry.argument, tensor, origin, region_.outside()))
      memory_.check_read(call, *given.tensor, origin.number(), progress_.slot_count());
  }
  return seen;
}

void ReplayOps::check_touched(OpCall& call) {
  if (op_.touches_product) products_.check(call, progress_.slot_count());
  if (!op_.touches_outside) return;
  op_.is_exchanged = memory_.exchange(call);
  memory_.check_outside(call, progress_.slot_count());
}

void ReplayOps::after_op(OpCall& call) {
  if (!region_.intercept()) return;
  size_t number = 0;
  for (const auto i : c10::irange(call.info().return_count())) {
    c10::IValue& result = call.result(i);
    if (C10_UNLIKELY(call.info().makes_objects())) comparison_.note_made(result);
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      if (C10_UNLIKELY(op_.views_unknown)) memory_.note_viewed(memory_of(tensor));
      memory_.storages().enter_result(
          tensor, op_.is_compared ? Origin::made(comparison_.count() - 1, number++) : op_.made);
    });
    if (op_.is_exchanged && call.info().writes()) {
      transform_tensors(result,
                        [&](const at::Tensor& tensor) { return memory_.original_of(tensor); });
    }
  }
  progress_.end_op();
}

// See Note [Views that nobody needs to see].
bool ReplayOps::skips_view(const at::Tensor& viewed) const {
  if (!region_.intercept()) return true;
  if (progress_.stops_before_next() || !has_layout(viewed)) return false;
  const void* const memory = memory_of(viewed);
  const Origin origin = memory ? memory_.storages().find(memory) : Origin::unknown();
  return origin.is_inside() && !origin.is_cast();
}

void ReplayOps::before_part(const OpCall& call) {
  if (!region_.intercept()) return;
  progress_.or_fail_unless_users([&] { products_.check(call, progress_.slot_count()); });
}

void ReplayOps::adopt(const at::Tensor& tensor) {
  if (region_.intercept()) memory_.storages().enter_result(tensor);
}

at::Tensor ReplayOps::stand_in(const at::Tensor& tensor) {
  return region_.intercept() ? memory_.stand_in(tensor) : tensor;
}

torch::autograd::Edge ReplayOps::stand_in(const torch::autograd::Edge& edge) {
  return region_.intercept() ? memory_.stand_in(edge) : edge;
}

}  // namespace remat
