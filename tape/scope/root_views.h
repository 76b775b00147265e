// SPDX-License-Identifier: BSD-3-Clause

// Which parts of tensors a backward begins at.
#pragma once

#include <cstdint>

#include <remat/tape/backward_observer.h>
#include <remat/tape/scope.h>

namespace remat {

/// A hash of which views the tensors at `roots` are of what ops have made: no op may have read
/// them. Views that show all of a tensor do not count: Note [Views are known by what reads them].
uint64_t hash_of_views(const EdgeList& roots);

}  // namespace remat
