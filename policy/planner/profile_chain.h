// SPDX-License-Identifier: BSD-3-Clause

// The numbers of a profile, without its names.
#pragma once

#include <remat/planner/profile.h>

#include <remat/planner/chain.h>

namespace remat::detail {

/// Tensors are numbered in the order of the ops' outs, from 1 on.
Block to_block(const BlockType& type);

/// Types have the indices of Profile::block_types.
Chain to_chain(const Profile& profile);

}  // namespace remat::detail
