// SPDX-License-Identifier: BSD-3-Clause

// A plan as a region carries it out.
#pragma once

#include <remat/memory_plan/step_cuts.h>
#include <remat/tape/cuts.h>
#include <remat/tape/export.h>

namespace remat {

/// For CheckpointOptions::cuts, with replay = kTape: the function that was measured then runs as
/// the plan says. Any thread.
REMAT_API Cuts cuts_of(const StepCuts& planned);

}  // namespace remat
