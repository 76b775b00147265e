// SPDX-License-Identifier: BSD-3-Clause

// A plan as a region carries it out.
#pragma once

#include <memory>

#include <remat/memory_plan/memory_plan.h>
#include <remat/memory_plan/step_cuts.h>
#include <remat/memory_plan/step_profile.h>
#include <remat/tape/cuts.h>
#include <remat/tape/expected_tape.h>
#include <remat/tape/export.h>

namespace remat {

/// For CheckpointOptions::cuts, with replay = kTape: the function that was measured then runs as
/// the plan says. A step of other ops, or that makes more memory, leaves the plan where it differs,
/// and is cut every so many bytes from there on: see Cuts::expected. Of a plan with OFFLOAD
/// CheckpointOptions::offload_store is to be the engine that it was made for. Any thread. Throws
/// ValueError for a plan that is not feasible.
REMAT_API Cuts cuts_of(const MemoryPlan& plan);

/// The same without a look at the ops: other ones are refused when the function returns.
REMAT_API Cuts cuts_of(const StepCuts& planned);

/// What the tape of the step that was measured looks like.
REMAT_API std::shared_ptr<const ExpectedTape> expected_tape(const StepProfile& profile);

/// Cuts::rest_bytes for steps of that size.
REMAT_API size_t rest_bytes(const StepProfile& profile);

}  // namespace remat
