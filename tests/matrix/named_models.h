// SPDX-License-Identifier: BSD-3-Clause

// Models whose blocks are made of parts that may be named calls.
#pragma once

#include <string>
#include <vector>

#include "matrix/models.h"
#include "matrix/patterns.h"

namespace remat::matrix {

Model make_mlp_of_calls(const Pattern& pattern);
Model make_gpt2_block_of_calls(const Pattern& pattern);
Model make_conv_batch_norm_of_calls(const Pattern& pattern);
Model make_lstm_of_calls(const Pattern& pattern);
Model make_top2_moe_of_calls(const Pattern& pattern);
Model make_views_of_calls(const Pattern& pattern);
Model make_in_place_calls(const Pattern& pattern);
Model make_random_calls(const Pattern& pattern);
Model make_many_results_of_calls(const Pattern& pattern);

}  // namespace remat::matrix
