// SPDX-License-Identifier: BSD-3-Clause

// Checking that a store can do the moves of a plan.
#include <remat/engine/planned_cuts.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <remat/engine/offload_store.h>

namespace remat {
namespace {

void check_room(const OffloadTerms& planned, const OffloadTerms& store, const std::string& where) {
  const char* const advice =
      ": what has no room would stay. Use the store that it was planned with, or plan with this "
      "one.";
  TORCH_CHECK_VALUE(store.max_bytes >= planned.max_bytes, where,
                    "offload_store: expected max_bytes of at least ", planned.max_bytes,
                    ", as the plan was made for, got ", store.max_bytes, advice);
  TORCH_CHECK_VALUE(store.places.size() >= planned.places.size(), where, "offload_store: expected ",
                    planned.places.size(), " memories, as the plan was made for, got ",
                    store.places.size(), advice);
  for (const auto i : c10::irange(planned.places.size())) {
    TORCH_CHECK_VALUE(store.places[i].max_bytes >= planned.places[i].max_bytes, where,
                      "offload_store: expected ", store.places[i].name, " of at least ",
                      planned.places[i].max_bytes, " bytes, as the plan was made for, got ",
                      store.places[i].max_bytes, advice);
  }
}

}  // namespace

void check_offload(const PlannedCuts& cuts, const OffloadStore& store, const std::string& where) {
  const std::optional<OffloadTerms> limits = store.limits();
  if (!cuts.offload || !limits) return;
  const auto check = [&](int64_t OffloadTerms::*limit, const char* name) {
    TORCH_CHECK_VALUE((*limits).*limit <= (*cuts.offload).*limit, where, "offload_store: expected ",
                      name, " of at most ", (*cuts.offload).*limit,
                      " bytes, as the plan was made for, got ", (*limits).*limit,
                      ": the step would take more than was planned. Use the store that it was "
                      "planned with, or plan with this one.");
  };
  check(&OffloadTerms::min_bytes, "min_bytes");
  check(&OffloadTerms::prefetch_bytes, "prefetch_bytes");
  check(&OffloadTerms::max_leaving_bytes, "max_leaving_bytes");
  check_room(*cuts.offload, *limits, where);
}

}  // namespace remat
