// SPDX-License-Identifier: BSD-3-Clause

// Validation and JSON of offload terms.
#pragma once

#include <nlohmann/json.hpp>

#include <remat/policy/json_tree.h>
#include <remat/policy/offload_terms.h>

namespace remat::detail {

/// @throws std::invalid_argument if no plan can be made for the terms.
void check_terms(const OffloadTerms& terms);

nlohmann::ordered_json to_json(const OffloadTerms& terms);

OffloadTerms read_terms(const JsonValue& value);

}  // namespace remat::detail
