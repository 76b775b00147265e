// SPDX-License-Identifier: BSD-3-Clause

// Checks profiles, and turns them into numbers without names.
#pragma once

#include <string>

#include <remat/planner/chain.h>
#include <remat/planner/profile.h>
#include <remat/policy/json_tree.h>

namespace remat::detail {

/// @throws Fault for the first fault of the profile.
void check_profile(const Profile& profile);

/// The region in numbers. Tensors are numbered in the order of the ops' outs, from 1 on.
Block to_block(const BlockType& type);

/// The chain in numbers. Types have the indices of Profile::block_types.
Chain to_chain(const Profile& profile);

/// Sum of forward and backward times over the chain: the time of a step that runs nothing twice.
double ideal_time_us(const Profile& profile);

int64_t output_bytes(const BlockType& type);

/// A number with at most ten digits: "0.5", "1e+300".
std::string in_digits(double value);

/// Part of a fault's text: "'attn'".
std::string quoted(const std::string& name);

}  // namespace remat::detail
