// SPDX-License-Identifier: BSD-3-Clause

// Computes the bound of Note [Lower bound] in lower_bound.h, by dynamic programming over the chain
// for one price per byte. Finds which backwards of ops must wait for which others, and how much
// memory is held while one of them runs.
#include "lower_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace remat::detail {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Only the last regions get moments: a moment with few regions before it hardly raises the bound.
constexpr size_t moment_regions = 4;
constexpr size_t moments_of_region = 6;
constexpr int max_planes = 200;

/// Per op: true if the output is computed from the op's results.
std::vector<char> reaching_output(const Block& block) {
  std::vector<char> wanted(block.tensors.size(), 0);
  wanted[block.output] = 1;
  std::vector<char> reaching(block.ops.size(), 0);
  for (size_t u = block.ops.size(); u-- > 0;) {
    const BlockOp& op = block.ops[u];
    reaching[u] =
        std::any_of(op.outs.begin(), op.outs.end(), [&](int t) { return wanted[t] != 0; }) ? 1 : 0;
    if (!reaching[u]) continue;
    for (const int in : op.ins) wanted[in] = 1;
  }
  return reaching;
}

/// Returns the block without the needs of ops that no gradient reaches. A schedule need not hold
/// tensors for such ops, because their backward may run at any time.
Block with_gradient_only(Block block) {
  const std::vector<char> reached = ops_with_gradient(block);
  for (BlockTensor& tensor : block.tensors) tensor.first_backward_user = -1;
  for (size_t u = block.ops.size(); u-- > 0;) {
    BlockOp& op = block.ops[u];
    if (!reached[u]) op.backward_needs.clear();
    for (const int need : op.backward_needs)
      block.tensors[need].first_backward_user = static_cast<int>(u);
  }
  return block;
}

/// Time of rerunning each op; 0 if the output does not need the op, because the rerun may then be
/// the op's first run.
std::vector<Ticks> rerun_times(const Block& block) {
  const std::vector<char> reaching = reaching_output(block);
  std::vector<Ticks> times;
  for (size_t u = 0; u < block.ops.size(); ++u) times.push_back(reaching[u] ? block.ops[u].fwd : 0);
  return times;
}

/// The cheapest point at a price per byte; nullptr if the hull is empty.
const KeepPoint* cheapest_point(const std::vector<KeepPoint>& hull, double price) {
  const KeepPoint* best = nullptr;
  double least = infinity;
  for (const KeepPoint& point : hull) {
    const double cost = static_cast<double>(point.time) + price * static_cast<double>(point.bytes);
    if (cost >= least) continue;
    least = cost;
    best = &point;
  }
  return best;
}

}  // namespace

LowerBound::LowerBound(const ChainModel& model) : model_(model), hulls_(model.types.size()) {
  const size_t length = model.length();
  for (size_t back = 1; back <= moment_regions && back < length; ++back) add_moments(length - back);
  std::vector<char> used(model.types.size(), 0);
  for (const int type : model.chain) used[type] = 1;
  for (size_t type = 0; type < model.types.size(); ++type) {
    if (!used[type]) continue;
    const Block block = with_gradient_only(model.types[type]);
    const std::vector<Ticks> rerun_time = rerun_times(block);
    hulls_[type].resize(fates * fates);
    for (size_t from = 0; from < fates; ++from) {
      for (size_t to = 0; to < fates; ++to) {
        KeepBounds bounds;
        bounds.input_available = static_cast<Fate>(from) != Fate::kGone;
        bounds.output_available = static_cast<Fate>(to) != Fate::kGone;
        bounds.output_rerun = static_cast<Fate>(to) == Fate::kRerun;
        hulls_[type][from * fates + to] = keep_hull(block, bounds, rerun_time);
      }
    }
  }
}

void LowerBound::add_moments(size_t position) {
  for (BackwardMoment& moment :
       backward_moments(with_gradient_only(model_.block(position)), position, moments_of_region)) {
    for (size_t fate = 0; fate < fates; ++fate) {
      KeepBounds bounds;
      bounds.input_available = static_cast<Fate>(fate) != Fate::kGone;
      moment.hulls.push_back(keep_hull(moment.rest, bounds, rerun_times(moment.rest)));
    }
    moments_.push_back(std::move(moment));
  }
}

/// The best path through the regions so far; one State per Fate of the tensor that follows them.
struct LowerBound::State {
  double cost = infinity;
  Step line;  ///< Sums of bytes and time

  State plus(Ticks time, int64_t bytes, double price) const {
    State to = *this;
    to.line.time += time;
    to.line.bytes += bytes;
    to.cost += static_cast<double>(time) + price * static_cast<double>(bytes);
    return to;
  }
  void improve(const State& from, const KeepPoint* point, int64_t more_bytes, double price) {
    if (point == nullptr || from.cost == infinity) return;
    const State candidate = from.plus(point->time, point->bytes + more_bytes, price);
    if (candidate.cost < cost) *this = candidate;
  }
};

std::vector<LowerBound::BestPoints> LowerBound::best_points(double price) const {
  std::vector<BestPoints> best(hulls_.size(), BestPoints(fates * fates, nullptr));
  for (size_t type = 0; type < hulls_.size(); ++type) {
    for (size_t pair = 0; pair < hulls_[type].size(); ++pair)
      best[type][pair] = cheapest_point(hulls_[type][pair], price);
  }
  return best;
}

Step LowerBound::cheapest(const BackwardMoment& moment, double price) const {
  const std::vector<BestPoints> best = best_points(price);
  std::vector<State> states(fates);
  states[static_cast<size_t>(Fate::kKept)] = State{0, {}}.plus(0, model_.input_bytes(0), price);
  states[static_cast<size_t>(Fate::kGone)] = {0, {}};
  for (size_t i = 0; i < moment.position; ++i) {
    const bool is_last = i + 1 == moment.position;
    std::vector<State> after(fates);
    for (size_t to = 0; to < fates; ++to) {
      const Fate fate = static_cast<Fate>(to);
      if (fate == Fate::kHeldByOp && !(is_last && moment.holds_input)) continue;
      const int64_t own = fate == Fate::kKept ? model_.output_bytes(i) : 0;
      for (size_t from = 0; from < fates; ++from)
        after[to].improve(states[from], best[model_.chain[i]][from * fates + to], own, price);
    }
    states = std::move(after);
  }
  State least;
  for (size_t fate = 0; fate < fates; ++fate)
    least.improve(states[fate], cheapest_point(moment.hulls[fate], price), 0, price);
  return least.line;
}

double LowerBound::bound_at(const BackwardMoment& moment, int64_t room_bytes) const {
  if (room_bytes < 0) return infinity;
  const auto over = [&](const Step& line) { return static_cast<double>(line.bytes - room_bytes); };
  Step cheap = cheapest(moment, 0);  // at price 0, may keep too much
  if (over(cheap) <= 0) return static_cast<double>(cheap.time);
  // The price is so high that saving a byte is worth any rerun.
  const double high = 2.0 * static_cast<double>(model_.ideal_time) + 1.0;
  Step small = cheapest(moment, high);
  if (over(small) > 0) return infinity;
  double best = static_cast<double>(cheap.time);
  for (int i = 0; i < max_planes; ++i) {
    // The price at which the two lines time + price * (bytes - room) meet.
    const double price = static_cast<double>(small.time - cheap.time) /
                         static_cast<double>(cheap.bytes - small.bytes);
    const Step line = cheapest(moment, price);
    const double value = static_cast<double>(line.time) + price * over(line);
    best = std::max(best, value);
    const double roof = static_cast<double>(cheap.time) + price * over(cheap);
    if (value >= roof * (1 - 1e-12)) break;
    (over(line) > 0 ? cheap : small) = line;
  }
  return best;
}

double LowerBound::total_time_us(int64_t budget_bytes) const {
  double most = 0;
  for (const BackwardMoment& moment : moments_)
    most = std::max(most, bound_at(moment, budget_bytes - moment.held_bytes));
  if (most == infinity) return infinity;
  // Sums of doubles may be off in their last digits; the bound must not exceed the truth.
  return (static_cast<double>(model_.ideal_time) + most * (1 - 1e-9)) / 1e6;
}

namespace {

/// Finds the ops whose backward waits for the backward of `op`, and those that `op` waits for.
class Waiting {
 public:
  Waiting(const Block& block, int op)
      : block_(block), before_(block.ops.size(), 0), after_(block.ops.size(), 0) {
    // The backward of an op comes after the backward of every reader of its first out.
    after_[op] = 1;
    for (int u = op; u >= 0; --u) {
      if (after_[u]) mark_producers(u);
    }
    before_[op] = 1;
    const std::vector<char> reached = ops_with_gradient(block);
    for (int v = op + 1; v < static_cast<int>(block.ops.size()); ++v) {
      const std::vector<int>& ins = block.ops[v].ins;
      const bool waits = std::any_of(ins.begin(), ins.end(), [&](int t) {
        return block_.tensors[t].has_gradient && t != 0 && before_[block_.tensors[t].producer] != 0;
      });
      if (waits && reached[v]) before_[v] = 1;
    }
    after_[op] = 0;
  }

  /// True if the backward of op `v` waits for that of the constructor's `op`.
  bool after(int v) const { return after_[v] != 0; }
  /// True if `w` is `op`, or if the backward of `w` must end before the backward of `op` begins.
  bool before(int w) const { return before_[w] != 0; }
  bool input_waits() const { return input_waits_; }
  bool reaches_output() const { return before_[block_.tensors[block_.output].producer] != 0; }

 private:
  void mark_producers(int u) {
    for (const int in : block_.ops[u].ins) {
      if (!block_.tensors[in].has_gradient) continue;
      if (in == 0) {
        input_waits_ = true;
      } else {
        after_[block_.tensors[in].producer] = 1;
      }
    }
  }

  const Block& block_;
  std::vector<char> before_;
  std::vector<char> after_;
  bool input_waits_ = false;
};

BackwardMoment moment_of(const Block& block, size_t position, int op, const Waiting& waiting) {
  const BlockOp& self = block.ops[op];
  BackwardMoment moment{position, self.bwd_tmp, false, block};
  std::vector<char> gradient(block.tensors.size(), 0);
  gradient[self.outs[0]] = 1;
  for (size_t w = 0; w < block.ops.size(); ++w) {
    if (!waiting.before(static_cast<int>(w))) continue;
    for (const int in : block.ops[w].ins) {
      // The backward of w allocates the gradient of `in`; the backward of its producer reads it.
      const bool to_come = in == 0 || waiting.after(block.tensors[in].producer);
      if (block.tensors[in].has_gradient && (to_come || static_cast<int>(w) == op))
        gradient[in] = 1;
    }
  }
  for (size_t t = 0; t < gradient.size(); ++t) {
    if (gradient[t]) moment.held_bytes += block.tensors[t].bytes;
  }
  for (const int need : self.backward_needs) {
    moment.held_bytes += block.tensors[need].bytes;
    if (need == 0) moment.holds_input = true;
    moment.rest.tensors[need].bytes = 0;
  }
  for (BlockTensor& tensor : moment.rest.tensors) tensor.first_backward_user = -1;
  for (size_t v = 0; v < block.ops.size(); ++v) {
    if (!waiting.after(static_cast<int>(v))) {
      moment.rest.ops[v].backward_needs.clear();
      continue;
    }
    for (const int need : block.ops[v].backward_needs) {
      int& first = moment.rest.tensors[need].first_backward_user;
      if (first < 0) first = static_cast<int>(v);
    }
  }
  return moment;
}

}  // namespace

std::vector<BackwardMoment> backward_moments(const Block& block, size_t position, size_t count) {
  std::vector<BackwardMoment> moments;
  for (size_t u = 0; u < block.ops.size(); ++u) {
    const Waiting waiting(block, static_cast<int>(u));
    if (!waiting.input_waits() || !waiting.reaches_output()) continue;
    moments.push_back(moment_of(block, position, static_cast<int>(u), waiting));
  }
  std::stable_sort(
      moments.begin(), moments.end(),
      [](const BackwardMoment& a, const BackwardMoment& b) { return a.held_bytes > b.held_bytes; });
  if (moments.size() > count)
    moments.erase(moments.begin() + static_cast<std::ptrdiff_t>(count), moments.end());
  return moments;
}

}  // namespace remat::detail
