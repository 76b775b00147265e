// SPDX-License-Identifier: BSD-3-Clause

// Lists the tensors that one region holds.
#include "held_tensors.h"

#include <c10/util/irange.h>

#include <remat/engine/outside_log.h>
#include <remat/engine/region_input.h>
#include <remat/tape/tape.h>

namespace remat {
namespace {

using Kind = HeldTensor::Kind;

void add_of_replayer(const Replayer& replayer, std::vector<HeldTensor>& all) {
  replayer.visit_inputs([&](const RegionInput& input) {
    if (!input.meta()) return;
    all.push_back({.kind = Kind::kArgument,
                   .number = input.position(),
                   .meta = *input.meta(),
                   .storage = input.storage(),
                   .is_leaf = input.is_leaf_with_grad()});
  });
  const auto add_as = [&](Kind kind) {
    return [&all, kind](const KeptValue& value) {
      all.push_back(
          {.kind = kind, .name = value.name, .meta = value.meta, .storage = value.storage});
    };
  };
  replayer.visit_kept(add_as(Kind::kOfCut));
  if (replayer.tape()) replayer.tape()->visit_held(add_as(Kind::kOfTape));
}

void add_written(const OutsideLog& outside, std::vector<HeldTensor>& all) {
  for (const auto i : c10::irange(outside.size())) {
    outside[i].visit_kept([&](const TensorLayout& part, const HeldStorage& storage) {
      all.push_back({.kind = Kind::kWritten,
                     .number = i,
                     .meta = outside[i].meta(),
                     .layout = part,
                     .storage = storage});
    });
  }
}

void add_of_calls(const Region& region, std::vector<HeldTensor>& all) {
  for (const KeptTensor& kept : region.calls().kept()) {
    if (!kept.live) continue;
    all.push_back({.kind = Kind::kSaved,
                   .name = kept.name,
                   .meta = kept.meta,
                   .layout = kept.layout,
                   .storage = kept.storage,
                   .is_leaf = kept.is_parameter,
                   .kept = &kept});
  }
  const std::vector<CallProduct::Held> held = region.kept_products();
  for (const auto i : c10::irange(held.size())) {
    if (!held[i]) continue;
    const CallProduct& product = region.calls().product(i);
    all.push_back({.kind = Kind::kResult,
                   .number = i,
                   .meta = product.meta(),
                   .storage = product.storage(),
                   .is_leaf = product.is_of_parameter(),
                   .product = &product,
                   .value = held[i]});
  }
}

}  // namespace

std::vector<HeldTensor> held_tensors(const Region& region, const Replayer* replayer) {
  std::vector<HeldTensor> held;
  if (replayer) add_of_replayer(*replayer, held);
  add_written(region.outside(), held);
  add_of_calls(region, held);
  return held;
}

}  // namespace remat
