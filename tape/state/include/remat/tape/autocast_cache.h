// SPDX-License-Identifier: BSD-3-Clause

// Casts of parameters that autocast's cache answers in a forward and a replay makes again.
#pragma once

#include <ATen/core/Tensor.h>

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// Note [Casts that a cache answers]: under autocast the forward takes a parameter's low-precision
/// copy from autocast's cache, as plain code does: gradients of parameters that are used twice are
/// bitwise equal only so. A replay makes the copy again. So casts of parameters are not logged, and
/// a copy is logged as made inside wherever it was made; the parameter counts as read; and no rule
/// of a policy is for such a cast, or the replay would have calls that the forward had not. (Inside
/// an op that autocast changes autocast is off: whether it asked for the cast cannot be told.)

/// True for a cast that the cache could have answered.
REMAT_API bool is_cacheable_cast(const OpCall& call);

/// The parameter that `tensor`, not made by an op that was seen, is autocast's copy of; undefined
/// if it is none.
at::Tensor autocast_source(const at::Tensor& tensor);

/// Note [Stale casts]: a weight may be written while the cache has its cast (an optimizer's step in
/// an autocast block). Plain code goes on with the cast, a replay would cast the weight as it is
/// now. So the version that a weight had when autocast cast it in a region is known; a cast that
/// was made outside of regions is compared with its weight once. Any thread.

/// `cast`, of `leaf` as it is now, has just been made: known if autocast has asked for it.
void note_autocast(const at::Tensor& cast, const at::Tensor& leaf);
bool is_known_cast(const at::Tensor& cast);
/// True if `cast`, from the cache, has not the values of `leaf` any more.
bool is_stale_cast(const at::Tensor& cast, const at::Tensor& leaf);

}  // namespace remat
