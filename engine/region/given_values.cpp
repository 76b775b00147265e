// SPDX-License-Identifier: BSD-3-Clause

// Finding writes in a backward to saved tensors that a region has handed to it.
#include "given_values.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <utility>

#include <remat/engine/op_call.h>
#include <remat/engine/region.h>
#include <remat/engine/tensor_layout.h>

namespace remat {

void GivenValues::add(std::shared_ptr<const Region> region, const Slot& slot,
                      const at::Tensor& value, bool others_have_it) {
  add(std::move(region),
      {.slot = &slot, .saved = &slot.version, .is_hooked = true, .others_have_it = others_have_it},
      value);
}

// Under hooks others always count as having the memory, because a reference of theirs cannot be
// told from a store's.
void GivenValues::add(std::shared_ptr<const Region> region, const KeptTensor& kept,
                      const at::Tensor& value, bool is_hooked) {
  add(std::move(region),
      {.kept = &kept, .saved = &*kept.version, .is_hooked = is_hooked, .others_have_it = is_hooked},
      value);
}

void GivenValues::add(std::shared_ptr<const Region> region, Given given, const at::Tensor& value) {
  if (value.is_inference()) return;
  region_ = std::move(region);
  given.memory = memory_of(value);
  given.version = value.unsafeGetTensorImpl()->version_counter();
  given.node = torch::autograd::get_current_node().get();
  given.before = given.version.current_version();
  all_.push_back(std::move(given));
}

void GivenValues::check(bool is_retained) const {
  for (const Given& given : all_) {
    const bool is_written =
        given.version.current_version() != given.before || given.saved->changed();
    const char* const seen_by_whom = is_written ? seen_by(given, is_retained) : nullptr;
    TORCH_CHECK_NOT_IMPLEMENTED(
        !seen_by_whom, where(given),
        ": expected that nobody writes in backward what the region has saved",
        given.is_hooked ? " under saved-tensor hooks" : " and a store has brought back",
        ", got a write to it, or to the forward's memory of it, ", seen_by_whom,
        given.is_hooked
            ? ". Hooks that copy part the two, others do not, and remat cannot know. Write a "
              "clone() in backward, or open no hooks there."
            : ". The store's copies part the two. Write a clone() in backward.");
  }
}

/// Says who may see a write to `given`; null if nobody does.
const char* GivenValues::seen_by(const Given& given, bool is_retained) const {
  if (given.others_have_it)
    return "which somebody else has (an attribute of a custom function's context, the region's "
           "result, a store)";
  if (has_twin(given)) return "and another saved tensor has that memory";
  if (given.is_hooked && is_retained) return "and the graph is retained for another backward";
  return nullptr;
}

/// True if another saved tensor had the same memory in the forward and would show the write.
/// Without hooks, the other tensor counts only if the same node got it on other memory. On the same
/// memory it shows the write as in plain code. Another node has read it before the write, or else
/// plain code raises, too.
bool GivenValues::has_twin(const Given& given) const {
  return std::any_of(all_.begin(), all_.end(), [&](const Given& other) {
    if (other.slot == given.slot && other.kept == given.kept) return false;
    const bool has_same_memory = other.saved->counter() == given.saved->counter();
    return has_same_memory && given.saved->counter() &&
           (given.is_hooked || (other.memory != given.memory && other.node == given.node));
  });
}

std::string GivenValues::where(const Given& given) const {
  if (given.kept)
    return c10::str("[replay] ", region_->label(), ", ",
                    region_->calls().records()[given.kept->call].call.str(), ", tensor '",
                    given.kept->name, "' (", given.kept->meta.str(), ")");
  return c10::str("[replay] ", region_->label(), ", slot ", given.slot->index, " (",
                  given.slot->meta.str(), "), saved by ",
                  given.slot->op ? given.slot->op->name() : "a custom function");
}

}  // namespace remat
