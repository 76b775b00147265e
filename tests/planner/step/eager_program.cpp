// SPDX-License-Identifier: BSD-3-Clause

// Derives the numbers of a step profile from the values that each op reads.
#include "planner/step/eager_program.h"

#include <algorithm>
#include <functional>

#include <remat/planner/step_cuts.h>

namespace remat::test {

int32_t EagerProgram::outside(int64_t bytes) {
  const auto v = static_cast<int32_t>(profile_.values.size());
  profile_.values.push_back({-1, v, bytes, 0});
  return v;
}

StepRecord& EagerProgram::add_record(const std::string& name, double us) {
  StepRecord& record = profile_.records.emplace_back();
  record.op = name;
  record.where = where_;
  record.forward_us = us;
  record.replay_us = us;
  record.backward_us = 2 * us;
  return record;
}

std::vector<int32_t> EagerProgram::run(const EagerOp& op) {
  const int32_t j = records();
  StepRecord& record = add_record(op.name, op.us);
  record.workspace_bytes = op.workspace;
  record.reads_data = op.reads_data;
  record.reads = op.reads;
  std::string signature = op.name + std::to_string(op.us);
  for (const int64_t bytes : op.makes) {
    record.makes.push_back(static_cast<int32_t>(profile_.values.size()));
    profile_.values.push_back({j, record.makes.back(), bytes, j});
    signature += "," + std::to_string(bytes);
  }
  record.kind = std::hash<std::string>()(signature) | 1;
  for (const int32_t v : op.reads) hold(v, j);
  for (const int32_t v : op.saves) profile_.slots.push_back({v, j, -1});
  for (const int32_t i : op.saves_made) profile_.slots.push_back({record.makes[i], j, -1});
  weight_gradients_.push_back(op.weight_gradient);
  differentiable_.push_back(op.differentiable ? 1 : 0);
  if (!op.differentiable) record.backward_us = 0;
  return record.makes;
}

int32_t EagerProgram::write(const std::string& name, int32_t target, double us) {
  const int32_t j = records();
  const auto after = static_cast<int32_t>(profile_.values.size());
  StepRecord& record = add_record(name, us);
  record.reads = {target};
  record.writes = {{target, after}};
  const StepValue& before = profile_.values[target];
  const int64_t bytes = profile_.values[before.storage].maker < 0 ? 0 : before.bytes;
  record.kind = std::hash<std::string>()(name + std::to_string(bytes)) | 1;
  profile_.values.push_back({j, before.storage, bytes, 0});
  hold(after, j);
  profile_.slots.push_back({after, j, -1});
  weight_gradients_.push_back(0);
  differentiable_.push_back(1);
  return after;
}

void EagerProgram::hold(int32_t value, int32_t until_record) {
  const int32_t storage = profile_.values[value].storage;
  int32_t until = until_record;
  for (const StepValue& other : profile_.values) {
    if (other.storage == storage) until = std::max(until, other.held_until);
  }
  for (StepValue& other : profile_.values) {
    if (other.storage == storage) other.held_until = until;
  }
}

StepProfile EagerProgram::finish(const std::string& name) {
  profile_.name = name;
  hold(profile_.records.back().makes.front(), records());
  set_forward_bytes();
  add_nodes();
  set_node_bytes();
  StepCuts whole;
  for (int32_t j = 0; j < records(); ++j) {
    const StepRecord& record = profile_.records[j];
    for (size_t i = 0; i < record.makes.size() + record.writes.size(); ++i)
      whole.keep.push_back({j, static_cast<int32_t>(i)});
  }
  profile_.plain_peak_bytes = simulate_step(profile_, whole).peak_bytes;
  return profile_;
}

void EagerProgram::set_forward_bytes() {
  std::vector<int64_t> change(records() + 2, 0);
  for (size_t v = 0; v < profile_.values.size(); ++v) {
    const StepValue& value = profile_.values[v];
    if (value.maker < 0 || value.storage != static_cast<int32_t>(v)) continue;
    change[value.maker] += value.bytes;
    change[std::min(value.held_until, records()) + 1] -= value.bytes;
    if (value.held_until == records()) profile_.end_bytes += value.bytes;
  }
  int64_t alive = 0;
  for (int32_t j = 0; j < records(); ++j) {
    alive += change[j];
    profile_.records[j].forward_bytes = alive + profile_.records[j].workspace_bytes;
  }
}

void EagerProgram::add_nodes() {
  std::vector<int32_t> node_of(records(), -1);
  for (int32_t j = records() - 1; j >= 0; --j) {
    if (!differentiable_[j]) continue;
    node_of[j] = static_cast<int32_t>(profile_.nodes.size());
    StepNode node;
    node.name = profile_.records[j].op + "Backward";
    node.record = j;
    node.us = profile_.records[j].backward_us;
    profile_.nodes.push_back(node);
  }
  for (StepSlot& slot : profile_.slots) slot.node = node_of[slot.record];
}

/// The gradient of a result is alive from the node of its last reader, the first to add to it, to
/// the end of its own node.
void EagerProgram::set_node_bytes() {
  const auto nodes = static_cast<int32_t>(profile_.nodes.size());
  std::vector<int64_t> born(nodes, 0);
  std::vector<int64_t> dead(nodes, 0);
  for (int32_t q = 0; q < nodes; ++q) {
    const StepRecord& record = profile_.records[profile_.nodes[q].record];
    const int32_t result = record.makes.empty() ? record.writes[0].after : record.makes[0];
    int32_t first = q;
    for (int32_t k = q - 1; k >= 0; --k) {
      const std::vector<int32_t>& reads = profile_.records[profile_.nodes[k].record].reads;
      if (std::find(reads.begin(), reads.end(), result) != reads.end()) first = k;
    }
    born[first] += profile_.values[result].bytes;
    dead[q] += profile_.values[result].bytes;
  }
  int64_t alive = 0;
  for (int32_t q = 0; q < nodes; ++q) {
    StepNode& node = profile_.nodes[q];
    const int64_t weight = weight_gradients_[node.record];
    node.before_bytes = alive;
    alive += born[q];
    node.inside_bytes = alive + weight + profile_.records[node.record].workspace_bytes;
    alive -= dead[q];
    node.after_bytes = alive;
  }
}

}  // namespace remat::test
