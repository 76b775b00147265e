// SPDX-License-Identifier: BSD-3-Clause

// The parts of tensors at which a backward pass begins.
#pragma once

#include <cstdint>

#include <remat/tape/backward_observer.h>
#include <remat/tape/scope.h>

namespace remat {

/// Hashes which views the tensors at `roots` are; no op may have read these views. Views of a whole
/// tensor do not count: Note [Views are known by what reads them].
uint64_t hash_of_views(const EdgeList& roots);

}  // namespace remat
