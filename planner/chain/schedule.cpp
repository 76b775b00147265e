// SPDX-License-Identifier: BSD-3-Clause

// Extracts schedules from solved parts, and puts their events in order.
#include <remat/planner/schedule.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

namespace remat::detail {

namespace {

/// Writes the events of nested parts. The rest of an unfinished part is on an explicit stack, so
/// deep nesting costs heap memory, not call stack.
class EventWriter {
 public:
  EventWriter(const Schedule& schedule, size_t length)
      : schedule_(schedule), groups_of_(length), region_at_(length, 0) {
    for (size_t i = 0; i < schedule.regions.size(); ++i)
      region_at_.at(schedule.regions[i].first) = i;
    for (const auto& [first, next] : schedule.groups)
      groups_of_[first].push_back(static_cast<size_t>(next));
    for (std::vector<size_t>& nexts : groups_of_) std::sort(nexts.begin(), nexts.end());
  }

  std::vector<ScheduleEvent> run() {
    tasks_.emplace_back(Positions(0, region_at_.size() - 1));
    while (!tasks_.empty()) {
      const auto task = tasks_.back();
      tasks_.pop_back();
      if (const ScheduleEvent* const event = std::get_if<ScheduleEvent>(&task)) {
        events_.push_back(*event);
      } else {
        const auto [first, last] = std::get<Positions>(task);
        part(first, last);
      }
    }
    return std::move(events_);
  }

 private:
  using Positions = std::pair<size_t, size_t>;  // first and last of a part

  void part(size_t first, size_t last) {
    std::vector<size_t>& nexts = groups_of_[first];
    if (!nexts.empty()) {
      const size_t next = nexts.back();
      nexts.pop_back();
      for (size_t i = first; i < next; ++i)
        events_.push_back({ScheduleEvent::Kind::kForwardOnly, i, i == first});
      tasks_.emplace_back(Positions(first, next - 1));
      tasks_.emplace_back(ScheduleEvent{ScheduleEvent::Kind::kRelease, next});
      tasks_.emplace_back(Positions(next, last));
      return;
    }
    const size_t index = region_at_[first];
    const size_t after = first + schedule_.regions[index].count;
    events_.push_back({ScheduleEvent::Kind::kForward, index});
    tasks_.emplace_back(ScheduleEvent{ScheduleEvent::Kind::kBackward, index});
    if (after <= last) tasks_.emplace_back(Positions(after, last));
  }

  const Schedule& schedule_;
  // Per region, the `next` of each group that begins with it, the outermost group last.
  std::vector<std::vector<size_t>> groups_of_;
  std::vector<size_t> region_at_;
  std::vector<std::variant<Positions, ScheduleEvent>> tasks_;
  std::vector<ScheduleEvent> events_;
};

struct Part {
  size_t first;
  size_t last;
  int64_t bytes;
  Ticks time = std::numeric_limits<Ticks>::max();  ///< Limit on the part's time
};

/// The best choice for a part, by the rules of extract_schedule.
Choice best_choice(const SequenceSolver& solver, const Part& part) {
  using Rank = std::tuple<Ticks, Choice::Kind, int64_t, size_t>;
  Choice best;
  Rank best_rank(std::numeric_limits<Ticks>::max(), Choice::Kind::kGroup, 0, 0);
  solver.visit_choices(
      part.first, part.last, part.bytes, part.time, [&](const Choice& choice, Ticks time) {
        const bool group = choice.kind == Choice::Kind::kGroup;
        const int64_t kept = group ? 0 : solver.model().options[choice.type][choice.option].kept;
        const Rank rank(time, choice.kind, kept, group ? choice.next : choice.option);
        if (rank >= best_rank) return;
        best_rank = rank;
        best = choice;
      });
  if (std::get<0>(best_rank) == std::numeric_limits<Ticks>::max()) {
    throw std::logic_error("[planner] regions " + std::to_string(part.first) + " to " +
                           std::to_string(part.last) + ": expected a plan within " +
                           std::to_string(part.bytes) + " bytes, got none. Report this.");
  }
  return best;
}

}  // namespace

std::vector<ScheduleEvent> events_of(const Schedule& schedule, size_t length) {
  return EventWriter(schedule, length).run();
}

Schedule extract_schedule(const SequenceSolver& solver, int64_t bytes) {
  const ChainModel& model = solver.model();
  Schedule schedule;
  std::vector<Part> parts = {{0, model.length() - 1, bytes}};
  while (!parts.empty()) {
    Part part = parts.back();
    parts.pop_back();
    // Uses only the bytes of the step, so that all budgets up to the next step give the same plan.
    if (const Step* step = step_at(solver.part(part.first, part.last), part.bytes)) {
      part.bytes = step->bytes;
      part.time = step->time;
    }
    const Choice choice = best_choice(solver, part);
    if (choice.kind == Choice::Kind::kGroup) {
      schedule.groups.push_back({static_cast<int>(part.first), static_cast<int>(choice.next)});
      parts.push_back({part.first, choice.next - 1, part.bytes});
      parts.push_back({choice.next, part.last, part.bytes - model.input_bytes(choice.next)});
      continue;
    }
    const Option& option = model.options[choice.type][choice.option];
    schedule.regions.push_back({part.first, choice.next - part.first, choice.type, option.rerun});
    if (choice.next > part.last) continue;
    const int64_t held = option.kept + model.types[choice.type].output_bytes();
    parts.push_back({choice.next, part.last, part.bytes - held});
  }
  std::sort(schedule.regions.begin(), schedule.regions.end(),
            [](const ScheduledRegion& a, const ScheduledRegion& b) { return a.first < b.first; });
  return schedule;
}

}  // namespace remat::detail
