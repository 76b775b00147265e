// SPDX-License-Identifier: BSD-3-Clause

// Casts of parameters that a forward takes from autocast's cache and a replay recomputes.
#pragma once

#include <ATen/core/Tensor.h>

#include <remat/engine/export.h>
#include <remat/engine/op_call.h>

namespace remat {

/// Note [Casts that a cache answers]: under autocast the forward takes a parameter's low-precision
/// copy from autocast's cache, as plain code does, because otherwise gradients of parameters used
/// twice would not be bitwise equal. A replay casts again. So casts of parameters are not logged, a
/// copy is logged as made inside wherever it was made, and the parameter counts as read. No policy
/// rule applies to such a cast, or the replay would have calls that the forward had not. (Autocast
/// is off inside an op that it changes, so whether it requested the cast is unknown.)

/// True for a cast whose result could come from autocast's cache.
REMAT_API bool is_cacheable_cast(const OpCall& call);

/// Returns the parameter that `tensor` is autocast's copy of; undefined if it is no such copy. No
/// intercepted op may have made `tensor`.
at::Tensor autocast_source(const at::Tensor& tensor);

/// Note [Stale casts]: a weight may be written while the cache has its cast (an optimizer's step in
/// an autocast block). Plain code goes on with the cast, whereas a replay would cast the weight as
/// it is now. So remat records the version that a weight had when autocast cast it in a region; a
/// cast made outside regions is compared with its weight once. The functions below are thread-safe.

/// Call it after `cast` has been made from `leaf`. Records the cast if autocast requested it.
void note_autocast(const at::Tensor& cast, const at::Tensor& leaf);
bool is_known_cast(const at::Tensor& cast);
/// True if `cast`, from the cache, no longer has the values of `leaf`.
bool is_stale_cast(const at::Tensor& cast, const at::Tensor& leaf);

}  // namespace remat
