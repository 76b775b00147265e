// SPDX-License-Identifier: BSD-3-Clause

// The executor described in docs/explanation/planner.md, with byte counts in place of tensors.
#include "simulator.h"

#include <algorithm>
#include <stdexcept>

namespace remat::detail {

namespace {

/// Tracks which tensors exist, and counts their bytes.
class Machine {
 public:
  Machine(const ChainModel& model, const Schedule& schedule)
      : model_(model),
        schedule_(schedule),
        chain_(model.length() + 1, 0),
        chain_gradient_(model.length() + 1, 0),
        tensors_(schedule.regions.size()) {
    for (size_t i = 0; i < schedule.regions.size(); ++i)
      tensors_[i].assign(model.types[schedule.regions[i].type].tensors.size(), 0);
    set(chain_[0], model.input_bytes(0), true);
  }

  Simulation run() {
    for (const ScheduleEvent& event : events_of(schedule_, model_.length())) {
      switch (event.kind) {
        case ScheduleEvent::Kind::kForwardOnly:
          forward_only(event.index, event.first);
          break;
        case ScheduleEvent::Kind::kForward:
          forward(event.index);
          break;
        case ScheduleEvent::Kind::kBackward:
          backward(event.index);
          break;
        case ScheduleEvent::Kind::kRelease:
          set(chain_[event.index], chain_bytes(event.index), false);
          break;
      }
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] static void missing(const char* what, size_t position) {
    throw std::logic_error("[simulator] region " + std::to_string(position) + ": expected " + what +
                           ", got none. Report this.");
  }

  int64_t chain_bytes(size_t i) const {
    return i == 0 ? model_.input_bytes(0) : model_.output_bytes(i - 1);
  }

  void set(char& flag, int64_t bytes, bool there) {
    if ((flag != 0) == there) return;
    flag = there ? 1 : 0;
    live_ += there ? bytes : -bytes;
  }

  /// Advances the time by an op's duration and compares the bytes with the peak.
  void moment(size_t position, int op, int64_t workspace, Ticks duration, bool in_backward) {
    result_.time += duration;
    if (live_ + workspace <= result_.peak) return;
    result_.peak = live_ + workspace;
    result_.peak_position = position;
    result_.peak_op = op;
    result_.peak_in_backward = in_backward;
  }

  /// The flag of a block's tensor; tensor 0 and the output are tensors of the chain.
  char& flag(std::vector<char>& tensors, const Block& block, int t, size_t first, size_t after) {
    if (t == 0) return chain_[first];
    return t == block.output ? chain_[after] : tensors[t];
  }

  void run_op(std::vector<char>& tensors, int type, int u, size_t first, size_t after,
              bool in_backward) {
    const Block& block = model_.types[type];
    const BlockOp& op = block.ops[u];
    for (const int in : op.ins) {
      if (!flag(tensors, block, in, first, after)) missing("what an op reads", first);
    }
    for (const int out : op.outs)
      set(flag(tensors, block, out, first, after), block.tensors[out].bytes, true);
    moment(first, u, op.fwd_tmp, op.fwd, in_backward);
  }

  /// Runs all ops in order. An inner tensor that is not in `keep` is freed after its last reader.
  void run_forward(std::vector<char>& tensors, int type, size_t first, size_t after,
                   const std::vector<char>& keep) {
    const Block& block = model_.types[type];
    for (size_t u = 0; u < block.ops.size(); ++u) {
      run_op(tensors, type, static_cast<int>(u), first, after, false);
      for (size_t t = 1; t < tensors.size(); ++t) {
        const int index = static_cast<int>(t);
        if (block.inner(index) && !keep[t] && block.tensors[t].last_reader <= static_cast<int>(u)) {
          set(tensors[t], block.tensors[t].bytes, false);
        }
      }
    }
  }

  void forward_only(size_t position, bool stays) {
    const int type = model_.chain[position];
    std::vector<char> tensors(model_.types[type].tensors.size(), 0);
    const std::vector<char> keep(tensors.size(), 0);
    run_forward(tensors, type, position, position + 1, keep);
    if (!stays) set(chain_[position], chain_bytes(position), false);
  }

  void forward(size_t index) {
    const ScheduledRegion& region = schedule_.regions[index];
    run_forward(tensors_[index], region.type, region.first, region.first + region.count,
                kept_tensors(model_.types[region.type], region.rerun));
  }

  void backward(size_t index) {
    const ScheduledRegion& region = schedule_.regions[index];
    const Block& block = model_.types[region.type];
    const size_t after = region.first + region.count;
    std::vector<char>& tensors = tensors_[index];
    if (!output_needed(block, region.rerun)) set(chain_[after], block.output_bytes(), false);
    if (after == model_.length()) set(chain_gradient_[after], block.output_bytes(), true);
    if (!chain_gradient_[after]) missing("the gradient of its output", region.first);
    replay(region, tensors, after);
    std::vector<char> gradients(tensors.size(), 0);
    for (size_t u = block.ops.size(); u-- > 0;)
      backward_op(region, tensors, gradients, static_cast<int>(u), after);
    set(chain_[after], block.output_bytes(), false);
    for (size_t t = 1; t < tensors.size(); ++t) {
      if (tensors[t] || (gradients[t] && static_cast<int>(t) != block.output))
        missing("all tensors freed", region.first);
    }
  }

  void replay(const ScheduledRegion& region, std::vector<char>& tensors, size_t after) {
    const Block& block = model_.types[region.type];
    std::vector<int> last_reader(tensors.size(), -1);
    for (size_t u = 0; u < block.ops.size(); ++u) {
      if (!region.rerun[u]) continue;
      for (const int in : block.ops[u].ins) last_reader[in] = static_cast<int>(u);
    }
    for (size_t u = 0; u < block.ops.size(); ++u) {
      if (!region.rerun[u]) continue;
      run_op(tensors, region.type, static_cast<int>(u), region.first, after, true);
      for (size_t t = 1; t < tensors.size(); ++t) {
        const BlockTensor& tensor = block.tensors[t];
        const bool made = tensor.producer <= static_cast<int>(u);
        if (made && tensor.first_backward_user < 0 && last_reader[t] <= static_cast<int>(u)) {
          set(flag(tensors, block, static_cast<int>(t), region.first, after), tensor.bytes, false);
        }
      }
    }
  }

  void backward_op(const ScheduledRegion& region, std::vector<char>& tensors,
                   std::vector<char>& gradients, int u, size_t after) {
    const Block& block = model_.types[region.type];
    const BlockOp& op = block.ops[u];
    const auto gradient = [&](int t) -> char& {
      if (t == 0) return chain_gradient_[region.first];
      return t == block.output ? chain_gradient_[after] : gradients[t];
    };
    for (const int need : op.backward_needs) {
      if (!flag(tensors, block, need, region.first, after))
        missing("what a backward reads", region.first);
    }
    for (const int in : op.ins) {
      if (block.tensors[in].has_gradient) set(gradient(in), block.tensors[in].bytes, true);
    }
    moment(region.first, u, op.bwd_tmp, op.bwd, true);
    set(gradient(op.outs[0]), block.tensors[op.outs[0]].bytes, false);
    for (const int need : op.backward_needs) {
      if (need == 0 || block.tensors[need].first_backward_user != u) continue;
      set(flag(tensors, block, need, region.first, after), block.tensors[need].bytes, false);
    }
  }

  const ChainModel& model_;
  const Schedule& schedule_;
  std::vector<char> chain_;                 // true if x_i exists
  std::vector<char> chain_gradient_;        // true if the gradient of x_i exists
  std::vector<std::vector<char>> tensors_;  // per scheduled region, its inner tensors
  int64_t live_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const ChainModel& model, const Schedule& schedule) {
  return Machine(model, schedule).run();
}

// Simulates no tensors, but adds up each region's Option (kept bytes, both peaks) and block sizes.
int64_t required_bytes(const ChainModel& model, const Schedule& schedule) {
  int64_t held = model.input_bytes(0);
  int64_t most = held;
  int64_t gradient = 0;  // bytes of the output gradient that the next backward reads; 0 at first
  for (const ScheduleEvent& event : events_of(schedule, model.length())) {
    if (event.kind == ScheduleEvent::Kind::kRelease) {
      held -= model.input_bytes(event.index);
      continue;
    }
    if (event.kind == ScheduleEvent::Kind::kForwardOnly) {
      most =
          std::max(most, held + gradient + model.forward_only_peak_bytes[model.chain[event.index]]);
      held += model.output_bytes(event.index) - (event.first ? 0 : model.input_bytes(event.index));
      continue;
    }
    const ScheduledRegion& region = schedule.regions[event.index];
    const Block& block = model.types[region.type];
    const Option option = measure_option(block, region.rerun);
    int64_t left = option.kept;
    if (event.kind == ScheduleEvent::Kind::kForward) {
      most = std::max(most, held + gradient + option.forward_peak);
      held += left + block.output_bytes();
    } else {
      held -= left + block.output_bytes();
      most = std::max(most, held + option.backward_peak);
      gradient = block.input_bytes();
    }
  }
  return most;
}

}  // namespace remat::detail
