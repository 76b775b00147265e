// SPDX-License-Identifier: BSD-3-Clause

// Follows the executor's description in docs/explanation/planner.md literally, with a set of the
// tensors in memory.
#include "planner/chain/brute_force.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

namespace remat::test {

namespace {

/// Region and tensor, or region and "g:" with the tensor for a gradient. Region i reads {i, "x"}.
using Name = std::pair<int, std::string>;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool backward_needs(const BlockType& type, const std::string& tensor) {
  return std::any_of(type.ops.begin(), type.ops.end(),
                     [&](const ProfileOp& op) { return contains(op.bwd_needs, tensor); });
}

bool rerun_reads(const BlockType& type, uint32_t rerun, const std::string& tensor) {
  for (size_t u = 0; u < type.ops.size(); ++u) {
    if ((rerun >> u & 1U) != 0 && contains(type.ops[u].ins, tensor)) return true;
  }
  return false;
}

/// Removes from `rerun`, over and over, ops whose results no backward and no op in it needs.
uint32_t drop_dead(const BlockType& type, uint32_t rerun) {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t u = 0; u < type.ops.size(); ++u) {
      if ((rerun >> u & 1U) == 0) continue;
      bool needed = false;
      for (const ProfileTensor& out : type.ops[u].outs) {
        if (out.name == type.output) continue;
        needed = needed || backward_needs(type, out.name) || rerun_reads(type, rerun, out.name);
      }
      if (needed) continue;
      rerun &= ~(1U << u);
      changed = true;
    }
  }
  return rerun;
}

class Machine {
 public:
  explicit Machine(const Profile& profile) : profile_(profile) {}

  BruteCost run(const BrutePlan& plan) {
    plan_ = &plan;
    groups_ = plan.groups;
    add({0, "x"}, type_at(0).input_bytes);
    part(0, static_cast<int>(profile_.chain.size()) - 1);
    return cost_;
  }

 private:
  const BlockType& type_at(int position) const {
    return profile_.block_types[profile_.chain[position]];
  }

  void add(const Name& name, int64_t bytes) {
    if (memory_.emplace(name, bytes).second) live_ += bytes;
  }
  void remove(const Name& name) {
    const auto at = memory_.find(name);
    if (at == memory_.end()) return;
    live_ -= at->second;
    memory_.erase(at);
  }
  void need(const Name& name) const {
    if (memory_.count(name) == 0) throw std::logic_error("brute force: missing " + name.second);
  }
  void check(int64_t workspace) {
    cost_.peak_bytes = std::max(cost_.peak_bytes, live_ + workspace);
  }

  /// Returns the name of a tensor of a region that takes {first, "x"} and gives {after, "x"}.
  static Name named(const BlockType& type, int first, int after, const std::string& tensor) {
    if (tensor == "in") return {first, "x"};
    if (tensor == type.output) return {after, "x"};
    return {first, tensor};
  }

  void part(int first, int last) {
    auto widest = groups_.end();
    for (auto at = groups_.begin(); at != groups_.end(); ++at) {
      if (at->first == first && at->second <= last &&
          (widest == groups_.end() || at->second > widest->second))
        widest = at;
    }
    if (widest != groups_.end()) {
      const int next = widest->second;
      groups_.erase(widest);
      for (int i = first; i < next; ++i) {
        forward(type_at(i), i, i + 1, 0, true);
        if (i > first) remove({i, "x"});
      }
      part(next, last);
      remove({next, "x"});
      part(first, next - 1);
      return;
    }
    const auto run = std::find_if(plan_->runs.begin(), plan_->runs.end(),
                                  [&](const BruteRun& r) { return r.first == first; });
    const BlockType& type = profile_.block_types[run->type];
    const int after = first + run->count;
    forward(type, first, after, run->rerun, false);
    if (after <= last) part(after, last);
    backward(type, first, after, run->rerun);
  }

  void execute(const BlockType& type, int first, int after, const ProfileOp& op) {
    for (const std::string& in : op.ins) need(named(type, first, after, in));
    for (const ProfileTensor& out : op.outs) add(named(type, first, after, out.name), out.bytes);
    check(op.fwd_tmp_bytes);
    cost_.time_us += op.fwd_us;
  }

  void forward(const BlockType& type, int first, int after, uint32_t rerun, bool forward_only) {
    for (size_t u = 0; u < type.ops.size(); ++u) {
      const ProfileOp& op = type.ops[u];
      execute(type, first, after, op);
      for (size_t v = 0; v <= u; ++v) {
        for (const ProfileTensor& out : type.ops[v].outs) {
          if (out.name == type.output) continue;
          bool read_later = false;
          for (size_t w = u + 1; w < type.ops.size(); ++w)
            read_later = read_later || contains(type.ops[w].ins, out.name);
          const bool kept = !forward_only && (rerun >> v & 1U) == 0 &&
                            (backward_needs(type, out.name) || rerun_reads(type, rerun, out.name));
          if (!read_later && !kept) remove({first, out.name});
        }
      }
    }
  }

  void backward(const BlockType& type, int first, int after, uint32_t rerun) {
    if (!backward_needs(type, type.output) && !rerun_reads(type, rerun, type.output))
      remove({after, "x"});
    int64_t output_bytes = 0;
    for (const ProfileOp& op : type.ops) {
      if (op.outs[0].name == type.output) output_bytes = op.outs[0].bytes;
    }
    add({after, "g:x"}, output_bytes);
    for (size_t u = 0; u < type.ops.size(); ++u) {
      if ((rerun >> u & 1U) == 0) continue;
      const ProfileOp& op = type.ops[u];
      execute(type, first, after, op);
      // Frees every value, kept or just made, that no backward and no later op of the replay reads.
      for (size_t v = 0; v <= u; ++v) {
        for (const ProfileTensor& out : type.ops[v].outs) {
          const uint32_t later = rerun & ~((2U << u) - 1U);
          if (!backward_needs(type, out.name) && !rerun_reads(type, later, out.name))
            remove(named(type, first, after, out.name));
        }
      }
    }
    const auto gradient = [&](const std::string& tensor) {
      Name name = named(type, first, after, tensor);
      name.second = "g:" + name.second;
      return name;
    };
    for (size_t u = type.ops.size(); u-- > 0;) {
      const ProfileOp& op = type.ops[u];
      for (const std::string& needed : op.bwd_needs) need(named(type, first, after, needed));
      for (const std::string& in : op.ins) {
        if (in == "in") {
          if (type.input_grad) add(gradient(in), type.input_bytes);
          continue;
        }
        for (const ProfileOp& producer : type.ops) {
          if (producer.outs[0].name == in) add(gradient(in), producer.outs[0].bytes);
        }
      }
      check(op.bwd_tmp_bytes);
      cost_.time_us += op.bwd_us;
      remove(gradient(op.outs[0].name));
      for (const std::string& needed : op.bwd_needs) {
        bool read_later = needed == "in";
        for (size_t w = 0; w < u; ++w)
          read_later = read_later || contains(type.ops[w].bwd_needs, needed);
        if (!read_later) remove(named(type, first, after, needed));
      }
    }
  }

  const Profile& profile_;
  const BrutePlan* plan_ = nullptr;
  std::vector<std::pair<int, int>> groups_;
  std::map<Name, int64_t> memory_;
  int64_t live_ = 0;
  BruteCost cost_;
};

class Enumeration {
 public:
  Enumeration(const Profile& profile, size_t limit) : profile_(profile), limit_(limit) {
    for (const BlockType& type : profile.block_types) {
      std::set<uint32_t> distinct;
      for (uint32_t mask = 0; mask < (1U << type.ops.size()); ++mask)
        distinct.insert(drop_dead(type, mask));
      policies_.emplace_back(distinct.begin(), distinct.end());
    }
  }

  std::vector<BrutePlan> part(int first, int last) {
    std::vector<BrutePlan> plans;
    runs(profile_.chain[first], 1, first, last, plans);
    for (const MergePattern& merge : profile_.merge_patterns) {
      const int count = static_cast<int>(merge.pattern.size());
      if (first + count > last + 1) continue;
      if (!std::equal(merge.pattern.begin(), merge.pattern.end(), profile_.chain.begin() + first))
        continue;
      runs(merge.block_type, count, first, last, plans);
    }
    for (int next = first + 1; next <= last; ++next) {
      const std::vector<BrutePlan> right = part(next, last);
      const std::vector<BrutePlan> left = part(first, next - 1);
      if (right.size() * left.size() > limit_) too_many_ = true;
      if (too_many_) return {};
      for (const BrutePlan& a : left) {
        for (const BrutePlan& b : right) {
          BrutePlan joined;
          joined.groups.emplace_back(first, next);
          append(joined, a);
          append(joined, b);
          plans.push_back(std::move(joined));
        }
      }
    }
    if (plans.size() > limit_) too_many_ = true;
    return too_many_ ? std::vector<BrutePlan>() : plans;
  }

 private:
  static void append(BrutePlan& to, const BrutePlan& from) {
    to.runs.insert(to.runs.end(), from.runs.begin(), from.runs.end());
    to.groups.insert(to.groups.end(), from.groups.begin(), from.groups.end());
  }

  void runs(int type, int count, int first, int last, std::vector<BrutePlan>& plans) {
    std::vector<BrutePlan> rests(1);
    if (first + count <= last) rests = part(first + count, last);
    if (rests.size() * policies_[type].size() > limit_) too_many_ = true;
    if (too_many_) return;
    for (const uint32_t rerun : policies_[type]) {
      for (const BrutePlan& rest : rests) {
        BrutePlan plan;
        plan.runs.push_back({first, count, type, rerun});
        append(plan, rest);
        plans.push_back(std::move(plan));
      }
    }
  }

  const Profile& profile_;
  size_t limit_;
  bool too_many_ = false;
  std::vector<std::vector<uint32_t>> policies_;
};

}  // namespace

std::vector<BrutePlan> all_plans(const Profile& profile, size_t limit) {
  return Enumeration(profile, limit).part(0, static_cast<int>(profile.chain.size()) - 1);
}

BruteCost replay(const Profile& profile, const BrutePlan& plan) {
  return Machine(profile).run(plan);
}

BrutePlan from_plan(const Profile& profile, const Plan& plan) {
  BrutePlan brute;
  for (const PlanGroup& group : plan.groups) brute.groups.emplace_back(group.first, group.next);
  for (const PlanRow& row : plan.table) {
    if (row.run_first == row.position) {
      BruteRun run{row.position, row.run_count, profile.chain[row.position], 0};
      for (const MergePattern& merge : profile.merge_patterns) {
        const bool fits = static_cast<int>(merge.pattern.size()) == row.run_count &&
                          std::equal(merge.pattern.begin(), merge.pattern.end(),
                                     profile.chain.begin() + row.position);
        if (row.run_count > 1 && fits) run.type = merge.block_type;
      }
      brute.runs.push_back(run);
    }
    BruteRun& run = brute.runs.back();
    const BlockType& type = profile.block_types[run.type];
    for (const PlanOp& op : row.ops) {
      for (size_t u = 0; u < type.ops.size(); ++u) {
        if (type.ops[u].name == op.name && op.policy == Policy::kRecompute) run.rerun |= 1U << u;
      }
    }
  }
  return brute;
}

}  // namespace remat::test
