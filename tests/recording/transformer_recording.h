// SPDX-License-Identifier: BSD-3-Clause

// A recording like one of training a transformer, with realistic numbers.
#pragma once

#include <string>

#include <remat/recording/recording.h>

namespace remat::test {

struct TransformerSteps {
  int steps = 2;
  int layers = 12;              ///< Regions "h.0", "h.1", ...
  bool keeps_attention = true;  ///< A SAVE call in each region keeps attention.
  bool has_plans = true;        ///< Steps from the second on have plans.
  std::string first_label{};    ///< Instead of "h.0"
};

/// With 12 layers each step has about 1,650 events.
Recording transformer_recording(const TransformerSteps& steps);

/// Returns the number of ops, memory events, saves, loads, nodes and the rest.
size_t events_of(const Recording& recording);

}  // namespace remat::test
