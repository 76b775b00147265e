// SPDX-License-Identifier: BSD-3-Clause

// Dynamic programming over the parts of a chain, by rising length.
#include <remat/planner/sequence_solver.h>

#include <algorithm>
#include <unordered_map>

namespace remat::detail {

namespace {

/// Once the solved parts have more steps than this (half a gigabyte), each further part gets at
/// most thinned_steps.
constexpr size_t max_stored_steps = size_t{32} << 20;
constexpr size_t thinned_steps = 500;

OptionDemand demand_of(const Option& option, const Block& block, int64_t gradient_bytes) {
  return {std::max(gradient_bytes + option.forward_peak, option.backward_peak),
          option.kept + block.output_bytes(), option.time + block.fwd + block.bwd};
}

/// Leaves out demands that another demand equals or beats in all respects.
std::vector<OptionDemand> least_demands(const std::vector<Option>& options, const Block& block,
                                        int64_t gradient_bytes) {
  std::vector<OptionDemand> least;
  for (const Option& option : options) {
    const OptionDemand demand = demand_of(option, block, gradient_bytes);
    const bool is_beaten = std::any_of(least.begin(), least.end(), [&](const OptionDemand& other) {
      return other.least <= demand.least && other.held <= demand.held && other.time <= demand.time;
    });
    if (!is_beaten) least.push_back(demand);
  }
  return least;
}

/// Adds a region to `pass`, the peak and time of a group's regions that run forward-only, one after
/// the other. The peak excludes the input of region `first`.
void add_forward_only(const ChainModel& model, size_t first, size_t region, Step& pass) {
  const int64_t input_bytes = region > first ? model.input_bytes(region) : 0;
  pass.bytes =
      std::max(pass.bytes, model.forward_only_peak_bytes[model.chain[region]] + input_bytes);
  pass.time += model.block(region).fwd;
}

/// Returns an id of the part per first and last region. Two parts have the same id if their types
/// are equal, and if both end the chain or both do not. An id stands for a pair: the id of the part
/// without its last region, and the type of that region.
std::vector<int> part_ids(const std::vector<int>& chain) {
  const size_t length = chain.size();
  std::vector<int> ids(length * length, -1);
  std::unordered_map<uint64_t, int> known;
  const auto name = [&](int shorter, int type) {
    const uint64_t key =
        (static_cast<uint64_t>(static_cast<uint32_t>(shorter)) << 32) | static_cast<uint32_t>(type);
    return known.try_emplace(key, static_cast<int>(known.size())).first->second;
  };
  constexpr int end_of_chain = -2;
  for (size_t first = 0; first < length; ++first) {
    int id = -1;
    for (size_t last = first; last < length; ++last) {
      id = name(id, chain[last]);
      ids[first * length + last] = last + 1 == length ? name(id, end_of_chain) : id;
    }
  }
  return ids;
}

}  // namespace

SequenceSolver::SequenceSolver(const ChainModel& model, size_t max_breakpoints)
    : model_(model),
      ids_(part_ids(model.chain)),
      parts_(static_cast<size_t>(*std::max_element(ids_.begin(), ids_.end())) + 1) {
  const size_t length = model.length();
  StepMinimum least;
  size_t breakpoints = 0;
  for (size_t size = 1; size <= length; ++size) {
    for (size_t first = 0; first + size <= length; ++first) {
      StepFunction& part = parts_[id(first, first + size - 1)];
      if (!part.empty()) continue;
      solve(first, first + size - 1, least);
      size_t limit = max_breakpoints;
      if (breakpoints > max_stored_steps)
        limit = limit == 0 ? thinned_steps : std::min(limit, thinned_steps);
      if (limit != 0 && least.best().size() > limit) exact_ = false;
      part = limit == 0 ? least.best() : thin_out(least.best(), limit);
      breakpoints += part.size();
    }
  }
}

int64_t SequenceSolver::gradient_bytes(size_t last) const {
  return last + 1 < model_.length() ? model_.output_bytes(last) : 0;
}

const std::vector<OptionDemand>& SequenceSolver::demands(int type, int64_t gradient_bytes) {
  const auto [at, is_new] = demands_.try_emplace({type, gradient_bytes});
  if (is_new) at->second = least_demands(model_.options[type], model_.types[type], gradient_bytes);
  return at->second;
}

void SequenceSolver::try_options(size_t last, int type, size_t next, StepMinimum& least) {
  for (const OptionDemand& demand : demands(type, gradient_bytes(last))) {
    if (next > last) {
      least.lower({demand.least, demand.time});
    } else {
      least.lower(part(next, last), demand.held, demand.time, demand.least);
    }
  }
}

void SequenceSolver::solve(size_t first, size_t last, StepMinimum& least) {
  least.clear();
  try_options(last, model_.chain[first], first + 1, least);
  for (const Merge& merge : model_.merges) {
    if (model_.matches(merge, first, last))
      try_options(last, merge.type, first + merge.pattern.size(), least);
  }
  Step pass;
  for (size_t j = first + 1; j <= last; ++j) {
    add_forward_only(model_, first, j - 1, pass);
    least.lower(part(j, last), model_.input_bytes(j), part(first, j - 1), pass.time,
                gradient_bytes(last) + pass.bytes);
  }
}

void SequenceSolver::visit_choices(size_t first, size_t last, int64_t bytes, Ticks most_time,
                                   const std::function<void(const Choice&, Ticks)>& visit) const {
  const auto visit_options = [&](Choice choice) {
    const Block& block = model_.types[choice.type];
    for (choice.option = 0; choice.option < model_.options[choice.type].size(); ++choice.option) {
      const Option& option = model_.options[choice.type][choice.option];
      const OptionDemand demand = demand_of(option, block, gradient_bytes(last));
      if (demand.least > bytes) continue;
      if (choice.next > last) {
        visit(choice, demand.time);
        continue;
      }
      const StepFunction& rest = part(choice.next, last);
      if (demand.time + rest.back().time > most_time) continue;
      const Step* step = step_at(rest, bytes - demand.held);
      if (step != nullptr) visit(choice, demand.time + step->time);
    }
  };
  visit_options({Choice::Kind::kOption, model_.chain[first], 0, first + 1});
  for (const Merge& merge : model_.merges) {
    if (!model_.matches(merge, first, last)) continue;
    visit_options({Choice::Kind::kMerged, merge.type, 0, first + merge.pattern.size()});
  }
  Step pass;
  for (size_t j = first + 1; j <= last; ++j) {
    add_forward_only(model_, first, j - 1, pass);
    if (gradient_bytes(last) + pass.bytes > bytes) break;
    const StepFunction& rights = part(j, last);
    const StepFunction& lefts = part(first, j - 1);
    if (pass.time + rights.back().time + lefts.back().time > most_time) continue;
    const Step* right = step_at(rights, bytes - model_.input_bytes(j));
    const Step* left = step_at(lefts, bytes);
    if (right == nullptr || left == nullptr) continue;
    visit({Choice::Kind::kGroup, 0, 0, j}, pass.time + right->time + left->time);
  }
}

}  // namespace remat::detail
