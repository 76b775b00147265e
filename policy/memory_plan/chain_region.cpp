// SPDX-License-Identifier: BSD-3-Clause

// Makes ops of records, and tensors of storages.
#include "chain_region.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace remat::detail {

namespace {

/// The planner compares times; noise below a nanosecond must not make types differ.
double rounded_us(double us) {
  return std::round(us * 1000) / 1000;
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

RegionBuilder::RegionBuilder(const StepGraph& graph, const ValueSpans& spans,
                             const std::vector<char>& pinned, int32_t begin, int32_t end,
                             int32_t entering, int32_t leaving)
    : graph_(graph), spans_(spans), pinned_(pinned), entering_(entering), leaving_(leaving) {
  region_.begin = begin;
  region_.end = end;
  joined_.resize(end - begin);
  std::iota(joined_.begin(), joined_.end(), begin);
  join_writes();
  join_with_later();
  number_ops();
  for (const std::vector<int32_t>& records : region_.ops) add_op(records);
  first_reader_ = region_.ops.size();
  for (size_t v = 0; v < graph.profile.values.size(); ++v) {
    const int32_t storage = graph.profile.values[v].storage;
    if (!spans.is_inner(storage) || pinned[storage]) continue;
    add_reads(static_cast<int32_t>(v));
  }
  for (const std::vector<int32_t>& records : region_.ops) {
    for (const int32_t j : records) {
      for (const int32_t slot : graph.slots_of_record[j]) add_needs(slot);
    }
  }
  lead_gradients();
}

int32_t RegionBuilder::find(int32_t record) {
  while (joined_[record - region_.begin] != record) record = joined_[record - region_.begin];
  return record;
}

void RegionBuilder::join(int32_t a, int32_t b) {
  a = find(a);
  b = find(b);
  joined_[std::min(a, b) - region_.begin] = std::max(a, b);  // an op is named by its last record
}

/// Joins a write, the maker of the value before it, and the readers of that value in between.
void RegionBuilder::join_writes() {
  for (int32_t j = region_.begin; j < region_.end; ++j) {
    for (const StepWrite& write : graph_.profile.records[j].writes) {
      const int32_t maker = graph_.maker(write.before);
      if (!is_inside(maker)) continue;
      join(maker, j);
      for (const int32_t use : graph_.uses[write.before]) {
        if (maker < use && use < j) join(use, j);
      }
    }
  }
}

/// Ops are ordered by their last records, so an op that reads what a later op makes is joined to
/// it.
void RegionBuilder::join_with_later() {
  for (bool changed = true; changed;) {
    changed = false;
    for (int32_t j = region_.begin; j < region_.end; ++j) {
      for (const int32_t v : graph_.profile.records[j].reads) {
        const int32_t maker = graph_.maker(v);
        if (!is_inside(maker) || find(maker) <= find(j)) continue;
        join(maker, j);
        changed = true;
      }
    }
  }
}

void RegionBuilder::number_ops() {
  std::map<int32_t, std::vector<int32_t>> by_last;
  for (int32_t j = region_.begin; j < region_.end; ++j) by_last[find(j)].push_back(j);
  op_of_.resize(joined_.size());
  for (auto& [last, records] : by_last) {
    for (const int32_t j : records) op_of_[j - region_.begin] = region_.ops.size();
    region_.ops.push_back(std::move(records));
  }
}

bool RegionBuilder::is_local(int32_t storage) const {
  return spans_.is_inner(storage) && !pinned_[storage] && is_inside(spans_.first[storage]);
}

bool RegionBuilder::is_entering(int32_t value) const {
  return graph_.profile.values[value].storage == entering_ && !is_inside(graph_.maker(value));
}

void RegionBuilder::add_op(const std::vector<int32_t>& records) {
  const std::string k = std::to_string(type_.ops.size());
  ProfileOp op;
  op.name = k;
  op.kind = "ew";
  op.outs = {{"g" + k, 0}};
  for (const int32_t j : records) {
    const StepRecord& record = graph_.profile.records[j];
    op.fwd_us += record.replay_us;
    op.bwd_us += record.backward_us;
    op.fwd_tmp_bytes = std::max(op.fwd_tmp_bytes, record.workspace_bytes);
    for (const int32_t v : record.makes) {
      if (!is_local(v)) continue;
      names_[v] = "t" + k + "." + std::to_string(op.outs.size());
      op.outs.push_back({names_[v], graph_.bytes(v)});
    }
  }
  op.fwd_us = rounded_us(op.fwd_us);
  op.bwd_us = rounded_us(op.bwd_us);
  type_.ops.push_back(std::move(op));
}

void RegionBuilder::add_reads(int32_t value) {
  const int32_t storage = graph_.profile.values[value].storage;
  const bool enters = is_entering(value);
  if (!enters && !is_local(storage)) return;
  for (const int32_t j : graph_.uses[value]) {
    if (!is_inside(j)) continue;
    const StepRecord& record = graph_.profile.records[j];
    const bool reads = record.reads_data && std::find(record.reads.begin(), record.reads.end(),
                                                      value) != record.reads.end();
    if (!reads) continue;
    const size_t k = op_of_[j - region_.begin];
    if (enters) {
      first_reader_ = std::min(first_reader_, k);
    } else if (op_of_[spans_.first[storage] - region_.begin] != k) {
      add_once(type_.ops[k].ins, names_[storage]);
    }
  }
}

void RegionBuilder::add_needs(int32_t slot) {
  const StepSlot& saved = graph_.profile.slots[slot];
  const int32_t storage = graph_.profile.values[saved.value].storage;
  size_t k = op_of_[saved.record - region_.begin];
  if (is_entering(saved.value)) {
    add_once(type_.ops[k].bwd_needs, "in");
  } else if (is_local(storage)) {
    // The op that later writes the storage needs it.
    k = std::max(k, op_of_[spans_.first[storage] - region_.begin]);
    add_once(type_.ops[k].bwd_needs, names_[storage]);
  }
}

/// See Note [Gradients in the chain].
void RegionBuilder::lead_gradients() {
  const bool is_first = region_.begin == 0;
  const size_t in = first_reader_ < type_.ops.size() ? first_reader_ : 0;
  size_t out = type_.ops.size() - 1;
  type_.output = "g" + std::to_string(out);
  if (leaving_ >= 0) {
    out = op_of_[spans_.first[leaving_] - region_.begin];
    std::vector<ProfileTensor>& outs = type_.ops[out].outs;
    type_.output = names_.at(leaving_);
    for (ProfileTensor& tensor : outs) {
      if (tensor.name == type_.output) std::swap(tensor, outs[0]);
    }
  }
  if (!is_first) add_once(type_.ops[in].ins, "in");
  if (in < out) add_once(type_.ops[out].ins, type_.ops[in].outs[0].name);
  if (in > out && !is_first) add_once(type_.ops[out].ins, "in");
  type_.input_grad = !is_first;
  type_.input_bytes = entering_ < 0 ? 0 : graph_.bytes(entering_);
  set_backward_workspaces(in, out);
}

void RegionBuilder::set_backward_workspaces(size_t first_reader, size_t output_maker) {
  std::vector<int64_t> most(type_.ops.size(), 0);
  for (const StepNode& node : graph_.profile.nodes) {
    if (!is_inside(node.record)) continue;
    int64_t& bytes = most[op_of_[node.record - region_.begin]];
    bytes = std::max({bytes, node.inside_bytes, node.after_bytes});
  }
  const int64_t output = leaving_ < 0 ? 0 : graph_.bytes(leaving_);
  for (size_t k = 0; k < most.size(); ++k) {
    int64_t counted = k >= output_maker ? output : 0;
    if (region_.begin > 0 && k <= std::min(first_reader, output_maker))
      counted += type_.input_bytes;
    type_.ops[k].bwd_tmp_bytes = std::max<int64_t>(0, most[k] - counted);
  }
}

}  // namespace remat::detail
