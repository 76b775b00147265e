// SPDX-License-Identifier: BSD-3-Clause

// Finding regions that have read what an op is about to write.
#pragma once

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// Call it before an op writes arguments: hands the old bytes to the regions that this thread has
/// closed and that have read them. See Note [Writes after the region].
REMAT_API void hand_to_readers(const OpCall& call);

}  // namespace remat
