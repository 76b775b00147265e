// SPDX-License-Identifier: BSD-3-Clause

// Memory plans as text.
#include <remat/planner/memory_plan.h>

#include <cmath>
#include <stdexcept>

#include <remat/policy/budget_text.h>

namespace remat {

namespace {

/// True if `where` is empty, the op's name, or the op's module or one around it: "h.3.attn" is in
/// "h.3", and "h.30" is not.
bool is_at(const MemoryPlanOp& op, std::string_view where) {
  if (where.empty() || op.op == where || op.where == where) return true;
  return op.where.size() > where.size() && op.where.compare(0, where.size(), where) == 0 &&
         op.where[where.size()] == '.';
}

/// A line with sums over neighbouring ops of one module or named call.
std::string line_of(const std::vector<const MemoryPlanOp*>& ops) {
  MemoryPlanOp sum;
  size_t rerun = 0;
  for (const MemoryPlanOp* op : ops) {
    rerun += op->runs > 0 ? 1 : 0;
    sum.kept_bytes += op->kept_bytes;
    sum.offloaded_bytes += op->offloaded_bytes;
    sum.made_bytes += op->made_bytes;
    sum.replay_us += op->replay_us * op->runs;
  }
  const std::string& where = ops.front()->where;
  return (where.empty() ? "(no name)" : where) + ": keeps " + detail::bytes_text(sum.kept_bytes) +
         (sum.offloaded_bytes > 0 ? " and offloads " + detail::bytes_text(sum.offloaded_bytes)
                                  : "") +
         " of " + detail::bytes_text(sum.made_bytes) + ", " + std::to_string(rerun) + " of " +
         std::to_string(ops.size()) + " ops run again, " +
         std::to_string(std::llround(sum.replay_us)) + " us\n";
}

}  // namespace

// Bytes up to max_leaving_bytes and prefetch_bytes stay in memory, so large limits save nothing.
std::string MemoryPlan::why_nothing_moves() const {
  if (offload.places.empty() || !feasible || offloaded_bytes > 0) return "";
  const int64_t many = budget_bytes / 4;
  const bool is_over = offload.max_leaving_bytes > many || offload.prefetch_bytes > many ||
                       offload.max_leaving_bytes + offload.prefetch_bytes > many;
  if (!is_over) return "";
  const auto shown = [](int64_t bytes) {
    return bytes == OffloadPlace::kNoLimit ? "no limit" : detail::bytes_text(bytes);
  };
  return "[memory plan] offload: nothing moves: the store's max_leaving_bytes (" +
         shown(offload.max_leaving_bytes) + ") and prefetch_bytes (" +
         shown(offload.prefetch_bytes) + ") count as memory of a budget of " +
         detail::bytes_text(budget_bytes) +
         ". Give the store smaller ones, a few percent of the budget.";
}

std::string MemoryPlan::table() const {
  std::string text = "budget " + detail::bytes_text(budget_bytes) + ", peak " +
                     detail::bytes_text(predicted_peak_bytes) + " (" + peak_at + "), overhead " +
                     detail::percent_text(predicted_overhead, 2) + "\n";
  if (!feasible) {
    text +=
        "infeasible: the least is " + detail::bytes_text(least_budget_bytes) + ", " + limit + "\n";
  }
  if (!offload.places.empty()) {
    text += "  offloads " + detail::bytes_text(offloaded_bytes) + ", waits " +
            std::to_string(std::llround(predicted_wait_us)) + " us for copies\n";
  }
  if (profile && !profile->caution().empty()) text += "  " + profile->caution() + "\n";
  for (const MemoryPlanPhase& phase : phases)
    text += "  " + phase.name + ": " + detail::bytes_text(phase.peak_bytes) + "\n";
  return text;
}

std::string MemoryPlan::explain(std::string_view where) const {
  std::string text;
  std::vector<const MemoryPlanOp*> same;
  for (const MemoryPlanOp& op : ops) {
    if (!is_at(op, where)) continue;
    if (!same.empty() && same.front()->where != op.where) {
      text += line_of(same);
      same.clear();
    }
    same.push_back(&op);
  }
  if (!same.empty()) return text + line_of(same);
  throw std::invalid_argument(
      "[memory plan] explain: expected a module, named call or op of the "
      "step, got '" +
      std::string(where) + "'. explain(\"\") lists all.");
}

}  // namespace remat
