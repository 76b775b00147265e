// SPDX-License-Identifier: BSD-3-Clause

// Runs failing steps, and looks for what they leave behind.
#include "faults/rig.h"

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include <remat/engine/region.h>
#include <remat/engine/scope.h>

#include "support/same_bits.h"

namespace remat::faults {
namespace {

constexpr uint64_t kSeed = 11;
constexpr size_t kMaxComplaints = 10;

/// Runs `beside` over and over on a thread of its own, until join() or the destructor.
class Neighbour {
 public:
  explicit Neighbour(const Beside& beside) {
    if (!beside) return;
    thread_ = std::thread([this, &beside] {
      do {
        const std::string complaint = beside();
        if (!complaint.empty()) complaint_ = complaint;
        running_ = true;
      } while (!done_);
    });
    while (!running_) std::this_thread::yield();
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;
  ~Neighbour() { join(); }

  /// Returns the last complaint of its steps; empty if there was none.
  std::string join() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
    return complaint_;
  }

 private:
  std::atomic<bool> running_{false};
  std::atomic<bool> done_{false};
  std::string complaint_;
  std::thread thread_;
};

bool all_current(const std::vector<GeneratorState>& streams) {
  for (const GeneratorState& stream : streams) {
    if (!stream.is_current()) return false;
  }
  return true;
}

void add(std::string& text, const char* where, const std::string& complaint) {
  if (!complaint.empty()) text += std::string("; ") + where + complaint;
}

/// Describes state of the thread or the process that a step must not leave changed.
std::string lasting_state() {
  if (is_recomputing() || Scope::current()) return "; a region is open";
  if (!at::GradMode::is_enabled()) return "; gradients are off";
  if (c10::InferenceMode::is_enabled()) return "; inference mode is on";
  if (at::autocast::is_autocast_enabled(at::kCPU)) return "; autocast is on";
  return "";
}

}  // namespace

/// A step that is to fail at a point.
struct Rig::Failure {
  size_t point;
  bool forward_ended = false;
  int count = 0;                          ///< The user's state when the forward ended.
  std::vector<GeneratorState> streams{};  ///< Generators when the step ended or failed.
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  bool thrown = false;
  bool caught = false;
  bool past_stop = false;
  std::string where{};
  std::string complaint{};
};

std::string Tally::str() const {
  return c10::str("points ", points, " (forward ", by_phase[0], ", replay ", by_phase[1],
                  ", backward ", by_phase[2], "), tried ", tried, ", caught ", caught,
                  past_stop > 0 ? c10::str(" and past the stop ", past_stop) : "",
                  ", left over: ", left_over, ", faulty: ", faulty_points);
}

// Autograd takes the youngest node first, so a node older than all others runs last.
BackwardQueue::BackwardQueue() : x_(torch::ones({1}).requires_grad_()), y_(x_.sin()) {}

void BackwardQueue::flush() const {
  torch::autograd::grad({y_}, {x_}, {torch::ones({1})}, /*retain_graph=*/true);
}

Rig::Rig(Model model, Regions regions) : model_(std::move(model)), regions_(std::move(regions)) {
  for (const at::Tensor& buffer : model_.buffers) initial_buffers_.push_back(buffer.clone());
  for (const at::Tensor& result : step({.plain = true}))
    plain_.push_back(result.defined() ? result.clone() : result);
  // A tape's first replay does more work than later ones, which trust the tape.
  for (int i = 0; i < 3; ++i) step(regions_);
  clear_grads();
}

void Rig::clear_grads() {
  for (at::Tensor parameter : model_.parameters) parameter.mutable_grad() = at::Tensor();
}

void Rig::prepare() {
  clear_grads();
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < initial_buffers_.size(); ++i)
    at::Tensor(model_.buffers[i]).copy_(initial_buffers_[i]);
  for (at::Generator generator : model_.generators) generator.set_current_seed(kSeed);
  regions_.reset_count();
}

/// Returns the loss, gradients and buffers.
Tensors Rig::results(const at::Tensor& loss) const {
  Tensors all{loss.detach()};
  for (const at::Tensor& parameter : model_.parameters) all.push_back(parameter.grad());
  all.insert(all.end(), model_.buffers.begin(), model_.buffers.end());
  return all;
}

Tensors Rig::step(const Regions& regions) {
  prepare();
  const at::Tensor loss = model_.loss(regions);
  loss.backward();
  return results(loss);
}

std::string Rig::difference(const Tensors& got) const {
  for (size_t i = 0; i < got.size(); ++i) {
    if (!same_bits(got[i], plain_[i])) return c10::str("result ", i, " differs from plain's");
  }
  return "";
}

std::string Rig::step_difference() {
  std::string text;
  try {
    text = difference(step(regions_));
  } catch (const std::exception& error) {
    text = std::string("an error: ") + error.what();
  }
  clear_grads();
  return text;
}

std::vector<GeneratorState> Rig::streams() const {
  std::vector<GeneratorState> all;
  for (const at::Generator& generator : model_.generators)
    all.push_back(GeneratorState::read(generator));
  return all;
}

/// Returns the loss; undefined if the step failed.
at::Tensor Rig::run_until(Failure& failure, Injector& injector) {
  try {
    const at::Tensor loss = model_.loss(regions_);
    failure.forward_ended = true;
    failure.streams = streams();
    failure.count = regions_.count();
    injector.begin_backward();
    loss.backward();
    return loss;
  } catch (const InjectedError& error) {
    failure.caught = error.point() == failure.point;
  } catch (const InjectedOutOfMemory& error) {
    failure.caught = error.point() == failure.point;
  } catch (const std::exception& error) {
    failure.complaint = std::string("; came out as: ") + error.what();
  }
  return {};
}

// An exception that a function throws once its replay has all that backward needs counts as the
// stop, which would have ended the function at the next op (RegionBody::outranks_stop). The step
// must be right then.
void Rig::run_failing(Kind kind, Failure& failure, Tally& tally) {
  const auto watch = regions_.watch();
  at::Tensor loss;
  {
    Injector injector(kind, failure.point, [&] {
      if (!failure.forward_ended) failure.streams = streams();
    });
    loss = run_until(failure, injector);
    failure.thrown = injector.thrown() > 0;
    failure.where = injector.where();
    if (!failure.thrown) {
      tally.points = injector.passed();
      tally.by_phase = injector.by_phase();
    }
  }
  if (loss.defined()) add(failure.complaint, "", difference(results(loss)));
  if (failure.thrown == failure.caught) return;
  failure.past_stop = loss.defined() && kind == Kind::kCallback &&
                      failure.where.rfind("replay", 0) == 0 &&
                      failure.where.find(kFunctionEnds) != std::string::npos;
  if (!failure.past_stop) failure.complaint += "; was thrown, but did not come out as it was";
}

std::string Rig::complaints_after(const Failure& failure) const {
  std::string text = failure.complaint + lasting_state();
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  if (keys.included_ != failure.keys.included_ || keys.excluded_ != failure.keys.excluded_)
    text += "; the thread's dispatch keys differ";
  if (!all_current(failure.streams)) text += "; a generator is elsewhere";
  if (!failure.forward_ended) return text;
  if (regions_.count() != failure.count) text += "; the user's state is another";
  const size_t first = plain_.size() - model_.buffers.size();
  for (size_t i = 0; i < model_.buffers.size(); ++i) {
    if (!same_bits(model_.buffers[i], plain_[first + i]))
      text += c10::str("; buffer ", i, " differs");
  }
  return text;
}

/// `blocks`: number of blocks that were alive before the failed step.
std::string Rig::complaints_of_next_step(int64_t blocks, Tally& tally) {
  clear_grads();
  queue_.flush();
  std::string text;
  const int64_t left = live_blocks() - blocks;
  tally.left_over += left < 0 ? -left : left;
  if (left != 0) text += c10::str("; left over: ", left);
  if (!live_regions().empty()) text += "; a region lives";
  add(text, "in the next step, ", step_difference());
  return text;
}

bool Rig::fail_at(Kind kind, size_t point, const Beside& beside, Tally& tally) {
  prepare();
  const int64_t blocks = live_blocks();
  Failure failure{.point = point};
  std::string text;
  {
    Neighbour neighbour(beside);
    run_failing(kind, failure, tally);
    text = complaints_after(failure);
    add(text, "on the other thread, ", neighbour.join());
  }
  text += complaints_of_next_step(blocks, tally);
  tally.tried += failure.thrown ? 1 : 0;
  tally.caught += failure.caught ? 1 : 0;
  tally.past_stop += failure.past_stop ? 1 : 0;
  if (!text.empty() && ++tally.faulty_points <= kMaxComplaints)
    tally.complaints.push_back(c10::str("point ", point, " (", failure.where, ")", text));
  return failure.thrown;
}

Tally Rig::try_all(Kind kind, const Beside& beside) {
  Tally tally;
  fail_at(kind, kNever, {}, tally);
  const size_t points = tally.points;
  for (size_t point = 1; point <= points; ++point) fail_at(kind, point, beside, tally);
  // The failed steps have changed nothing: there are as many points as before.
  if (fail_at(kind, points + 1, beside, tally) || tally.points != points) {
    ++tally.faulty_points;
    tally.complaints.push_back(c10::str("there were ", points, " points, and now ", tally.points));
  }
  return tally;
}

}  // namespace remat::faults
