// SPDX-License-Identifier: BSD-3-Clause

#include <remat/memory_plan/measuring_cuts.h>

#include "cut_choice.h"
#include "step_graph.h"
#include "value_spans.h"

namespace remat {

std::vector<int32_t> measuring_cuts(const StepProfile& profile) {
  profile.validate();
  const detail::StepGraph graph(profile);
  const detail::ValueSpans spans(graph);
  return detail::choose_regions(graph, spans, {}).positions;
}

}  // namespace remat
