// SPDX-License-Identifier: BSD-3-Clause

// Offload terms: what is wrong with them, and their JSON.
#pragma once

#include <nlohmann/json.hpp>

#include <remat/planner/json_tree.h>
#include <remat/policy/offload_terms.h>

namespace remat::detail {

/// @throws std::invalid_argument for what no plan can be made for.
void check_terms(const OffloadTerms& terms);

nlohmann::ordered_json to_json(const OffloadTerms& terms);

/// What to_json() gives.
OffloadTerms read_terms(const JsonValue& value);

}  // namespace remat::detail
