// SPDX-License-Identifier: BSD-3-Clause

// Filling slots from a tape, or by the function if no tape could be recorded.
#include <remat/engine/hidden_scopes.h>
#include <remat/tape/tape_replayer.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include <remat/engine/generator_state.h>
#include <remat/engine/region.h>
#include <remat/engine/replay_mismatch.h>
#include <remat/engine/scope.h>
#include <remat/engine/trace_sink.h>

#include <remat/engine/turn.h>
#include "tape_run.h"

namespace remat {

void TapeReplayer::finish_forward(const Region& region) {
  entry_->finish_forward(region);
  if (tape_.failure().empty()) {
    function_.reset();
    entry_->release_state();
    count_parts_to_compare();
  } else if (trust_.refuse()) {
    TORCH_WARN("[checkpoint] ", region.label(),
               ": its function is called again by replays, since no tape can be written of it: ",
               tape_.failure());
  }
}

void TapeReplayer::replay(const Region& region, ReplayedSlots& slots) const {
  if (!tape_.failure().empty()) return function_->replay(region, slots);
  try {
    replay_part(region, region, /*unit=*/0, /*inputs=*/{}, slots);
  } catch (const ReplayMismatch&) {
    trust_.refuse();  // With kAuto, the next forward will be replayed by the function.
    throw;
  }
  note_compared();
}

void TapeReplayer::count_parts_to_compare() {
  const auto has_slots = [](const TapePart& part) {
    return std::any_of(part.slots.begin(), part.slots.end(),
                       [](const TapeSlot& slot) { return slot.special || slot.ref.defined(); });
  };
  parts_to_compare_ = std::count_if(tape_.parts().begin(), tape_.parts().end(), has_slots);
}

void TapeReplayer::note_compared() const {
  if (!tape_.has_hashes() || tape_.is_under_mode()) return;
  if (++compared_parts_ >= parts_to_compare_) trust_.trust(tape_.op_hashes());
}

void TapeReplayer::replay_part(const Region& root, const Region& region, size_t unit,
                               c10::ArrayRef<std::shared_ptr<const CutValue>> inputs,
                               ReplayedSlots& slots) const {
  TORCH_CHECK_NOT_IMPLEMENTED(tape_.failure().empty(), "[replay] ", region.label(),
                              ": expected a region with cuts to be replayed from its tape, got one "
                              "of which there is none: ",
                              tape_.failure(), ". Do not catch the error that the forward threw.");
  const auto reported =
      traced([&](TraceSink& sink, bool begins) { sink.tape_replay(region, root, begins); });
  // Gathers even weights that no record reads, in the forward's order, because another rank may
  // replay the same region by its function, which gathers all of them.
  root.outside().gather_again();
  TapeRun run(tape_, root, *entry_, region, unit, inputs);
  run.fetch();
  {
    const std::vector<at::Generator> generators = tape_.generators(unit);
    std::optional<Turn> turn;
    if (!generators.empty()) turn.emplace();
    KeptGenerators kept;
    for (const at::Generator& generator : generators) kept.add(generator);
    const SuspendScopes suspend;
    const ThreadState& state = entry_->thread_state();
    state.check_precision(region.label());
    const ReplayThreadState thread_state(state, /*casts_weights=*/false);
    run.run();
  }
  run.fill(slots);
}

}  // namespace remat
