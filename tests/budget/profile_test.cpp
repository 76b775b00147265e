// SPDX-License-Identifier: BSD-3-Clause

// Measured steps: their numbers, and that plans made from them run as predicted.
#include <torch/torch.h>

#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <remat/budget/plan_cuts.h>
#include <remat/budget/profile.h>
#include <remat/engine/planned_cuts.h>
#include <remat/planner/memory_planner.h>
#include <remat/remat.h>

#include "inspect/recorded_program.h"
#include "support/catch.h"
#include "support/default_device.h"
#include "support/error_text.h"
#include "support/named_step.h"

namespace remat {
namespace {

constexpr int64_t kBytes = 32 * sizeof(float);  // bytes of a tensor like step_input()

using Loss = std::function<at::Tensor(const at::Tensor&)>;

StepProfile profile_of(const Loss& loss, const at::Tensor& x = step_input()) {
  return profile({.name = "step", .steps = 1})(loss)(x);
}

std::vector<std::string> ops_of(const StepProfile& profile) {
  std::vector<std::string> ops;
  for (const StepRecord& record : profile.records) ops.push_back(record.op);
  return ops;
}

/// Returns how many saved tensors are freed by nodes with the name `node`.
size_t slots_of(const StepProfile& profile, const std::string& node) {
  return std::count_if(profile.slots.begin(), profile.slots.end(), [&](const StepSlot& slot) {
    return slot.node >= 0 && profile.nodes[slot.node].name == node;
  });
}

/// Returns peak and gradient of one step.
std::pair<int64_t, at::Tensor> run(const Loss& loss) {
  const at::Tensor x = step_input();
  MemoryMeter meter;
  loss(x).backward();
  const int64_t peak = meter.peak_bytes(default_device());
  return {peak, x.grad()};
}

std::shared_ptr<const PlannedCuts> checked_cuts_of(const MemoryPlan& plan) {
  const std::shared_ptr<PlannedCuts> cuts = cuts_of(plan);
  cuts->differs = [](const TapeDifference& difference) {
    FAIL_CHECK("record " << difference.record << " is " << difference.got);
  };
  return cuts;
}

/// Checks that each plan of the frontier is bitwise right and has the predicted peak. `clones`:
/// bytes that the measured plain peak has too many, for storages of which in-place ops save a part.
void check_plans(const Loss& loss, int64_t clones = 0) {
  run(loss);
  const auto [plain_peak, gradient] = run(loss);
  const StepProfile measured = profile_of(loss);
  CHECK(measured.plain_peak_bytes == plain_peak + clones);
  const MemoryPlanner planner(measured);
  for (const MemoryFrontierPoint& point : planner.frontier()) {
    INFO("budget " << point.peak_bytes);
    const MemoryPlan plan = planner.plan(point.peak_bytes);
    const auto planned = checkpoint(
        {.name = "planned", .replay = ReplayEngine::kTape, .plan = checked_cuts_of(plan)})(loss);
    run(planned);
    const auto [peak, got] = run(planned);
    CHECK(same_bits(got, gradient));
    CHECK(peak == plan.predicted_peak_bytes);
  }
}

/// Checks that a step with these cuts has the simulated peak.
void check_cuts(const Loss& loss, const StepCuts& cuts) {
  const Loss seeded = [&](const at::Tensor& x) {
    torch::manual_seed(3);
    return loss(x);
  };
  run(seeded);
  const at::Tensor gradient = run(seeded).second;
  const StepSimulation simulation = simulate_step(profile_of(seeded), cuts);
  const auto cut =
      checkpoint({.name = "cut", .replay = ReplayEngine::kTape, .plan = cuts_of(cuts)})(seeded);
  run(cut);
  const auto [peak, got] = run(cut);
  CHECK(same_bits(got, gradient));
  CHECK(peak == simulation.peak_bytes);
}

/// A step that computes its loss outside the function, from its results.
struct OutsideLoss {
  Loss function;
  Loss loss;
  bool holds_result = false;  ///< Whether the program holds the result while backward runs.
};

class OutsideLossRunner final : public StepRunner {
 public:
  explicit OutsideLossRunner(OutsideLoss step) : step_(std::move(step)) {}

  void forward(const CheckpointOptions& options, StepRecording* /*recording*/) override {
    result_ = options.plan ? checkpoint(options)(step_.function)(x) : step_.function(x);
  }
  void backward() override {
    const at::Tensor loss = step_.loss(result_);
    if (!step_.holds_result) drop();
    loss.backward();
  }
  void drop() noexcept override { result_.reset(); }

  const at::Tensor x = step_input();

 private:
  OutsideLoss step_;
  at::Tensor result_;
};

/// Returns peak and gradient of a step. Each run draws the same random numbers.
std::pair<int64_t, at::Tensor> run(const OutsideLoss& step,
                                   std::shared_ptr<const PlannedCuts> plan) {
  torch::manual_seed(3);
  OutsideLossRunner runner(step);
  MemoryMeter meter;
  runner.forward({.name = "outside", .replay = ReplayEngine::kTape, .plan = std::move(plan)},
                 nullptr);
  runner.backward();
  runner.drop();
  const int64_t peak = meter.peak_bytes(default_device());
  return {peak, runner.x.grad()};
}

/// Does what check_plans() does, for a loss outside the function. Returns the profile.
StepProfile check_outside(const OutsideLoss& step) {
  const auto [plain_peak, gradient] = run(step, {});
  OutsideLossRunner runner(step);
  const StepProfile measured = profile_steps(runner, {.name = "outside", .steps = 2});
  CHECK(measured.plain_peak_bytes == plain_peak);
  const MemoryPlanner planner(measured);
  CHECK(planner.frontier().size() > 1);  // how many depends on measured times
  for (const MemoryFrontierPoint& point : planner.frontier()) {
    INFO("budget " << point.peak_bytes);
    const MemoryPlan plan = planner.plan(point.peak_bytes);
    const auto [peak, got] = run(step, checked_cuts_of(plan));
    CHECK(same_bits(got, gradient));
    CHECK(peak == plan.predicted_peak_bytes);
  }
  return measured;
}

/// Checks that each plan of the frontier is bitwise right and takes no more than predicted.
void check_within(const OutsideLoss& step) {
  const at::Tensor gradient = run(step, {}).second;
  OutsideLossRunner runner(step);
  const MemoryPlanner planner(profile_steps(runner, {.name = "outside", .steps = 2}));
  CHECK(planner.frontier().size() > 1);
  for (const MemoryFrontierPoint& point : planner.frontier()) {
    INFO("budget " << point.peak_bytes);
    const MemoryPlan plan = planner.plan(point.peak_bytes);
    const auto [peak, got] = run(step, checked_cuts_of(plan));
    CHECK(same_bits(got, gradient));
    CHECK(peak <= plan.predicted_peak_bytes);
  }
}

struct Halve : torch::autograd::Function<Halve> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x) {
    context->mark_dirty({x});
    return x.mul_(0.5);
  }
  static Tensors backward(torch::autograd::AutogradContext* /*context*/, const Tensors& grads) {
    return {grads[0] * 0.5};
  }
};

/// Returns the result of the last record.
const StepValue& result_of(const StepProfile& profile) {
  return profile.values.at(profile.records.back().makes.at(0));
}

}  // namespace

TEST_CASE("A profile has the records, values and saved tensors of a step", "[budget]") {
  const StepProfile profile = profile_of([](const at::Tensor& x) {
    return x.sin().view({8, 4}).exp().sum();
  });
  CHECK(ops_of(profile) == std::vector<std::string>{"aten::sin", "aten::exp", "aten::sum"});
  const StepRecord& exp = profile.records[1];
  REQUIRE(exp.makes.size() == 1);
  REQUIRE(exp.reads == profile.records[0].makes);
  CHECK(profile.values[exp.makes[0]].bytes == block_bytes(kBytes));
  CHECK(profile.values[exp.makes[0]].held_until == 2);  // sum reads it
  CHECK(exp.forward_bytes == 2 * block_bytes(kBytes));
  CHECK(profile.end_bytes == block_bytes(4));
  REQUIRE(profile.slots.size() == 2);
  CHECK(profile.slots[0].value == -1);  // x is from outside
  CHECK(profile.slots[1].value == exp.makes[0]);
  CHECK(profile.nodes[profile.slots[1].node].name == "ExpBackward0");
  CHECK(profile.nodes[profile.slots[0].node].name == "SinBackward0");
  CHECK(profile.records[0].forward_us > 0);
  CHECK(profile.records[1].backward_us > 0);
}

TEST_CASE("Equal work has one kind", "[budget]") {
  const StepProfile profile =
      profile_of([](const at::Tensor& x) { return x.sin().sin().mul(2).mul(3).exp().sum(); });
  const auto kind = [&](size_t record) { return profile.records.at(record).kind; };
  CHECK(kind(0) == kind(1));
  CHECK(kind(2) != kind(3));
  CHECK(profile.records[0].forward_us == profile.records[1].forward_us);
}

TEST_CASE("Plans of measured steps run as predicted", "[budget]") {
  check_plans([](const at::Tensor& x) { return x.sin().exp().cos().tanh().sinh().exp().sum(); });
  check_plans([](const at::Tensor& x) {
    const at::Tensor a = x.sin().exp();
    const at::Tensor b = a.tanh().mul(a).sigmoid();
    return (b.cos() * a.atan() + b).exp().sum();
  });
  check_plans([](const at::Tensor& x) {
    at::Tensor y = x.sin().clone();
    y.sigmoid_();
    const at::Tensor z = y.exp().clone();
    return (z.relu_().sin() * y.tanh()).exp().sum();
  });
}

// When an op saves a view of an overwritten tensor, the view gets a node newer than the op's.
TEST_CASE("What is saved goes with the node that asks for it", "[budget]") {
  const Loss loss = [](const at::Tensor& x) {
    const at::Tensor whole = x.sin();
    const at::Tensor view = whole.view({-1});
    whole.mul_(2);
    return view.cos().exp().square().sum();
  };
  CHECK(slots_of(profile_of(loss), "CosBackward0") == 1);
  check_plans(loss);
}

TEST_CASE("What a replay overwrites although it is kept goes when it has been overwritten",
          "[budget]") {
  check_cuts(
      [](const at::Tensor& x) {
        at::Tensor written = x.clone();
        torch::rrelu_(written, 0.1, 0.3, true);
        at::Tensor y = x * 2;
        for (int i = 0; i < 6; ++i) y = y.sin();
        y = y * written;
        return y.sum() + written.sum();
      },
      {.positions = {11}, .groups = {}, .keep = {{2, 0}}});
}

// [cpu]: expects the record numbers that lstm_cell() has on the CPU.
TEST_CASE("What a group gives shares the memory of what is kept", "[budget][cpu]") {
  const at::Tensor w = torch::linspace(-1, 1, 16).view({4, 4}).requires_grad_();
  check_cuts(
      [&](const at::Tensor& x) {
        w.mutable_grad() = at::Tensor();
        const at::Tensor rows = x.view({-1, 4});
        const auto [h, c] =
            torch::lstm_cell(rows.detach(), {rows, rows}, w.repeat({4, 1}), w.repeat({4, 1}));
        return c.square().sum();
      },
      {.positions = {1, 3, 12},
       .groups = {{0, 3}, {1, 3}},
       .keep = {{0, 0}, {5, 0}, {6, 0}, {7, 0}, {8, 0}, {11, 0}}});
}

TEST_CASE("A gradient that is summed when its node has ended counts beside what the node holds",
          "[budget]") {
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).requires_grad_();
  const at::Tensor b = torch::linspace(-1, 1, 8).requires_grad_();
  check_plans([&](const at::Tensor& x) {
    w.mutable_grad() = b.mutable_grad() = at::Tensor();
    at::Tensor y = x;
    for (int i = 0; i < 3; ++i) y = torch::linear(y, w, b).tanh().sin();
    return y.square().mean();
  });
}

TEST_CASE("A value that only ops read of which nothing is saved is planned as it runs",
          "[budget]") {
  check_plans([](const at::Tensor& x) {
    at::Tensor y = x;
    at::Tensor sum = torch::zeros({});
    std::vector<at::Tensor> all;
    for (int i = 0; i < 4; ++i) all.push_back(y = y.sin().tanh());
    for (const at::Tensor& one : all) sum = sum + one.mean();
    return y.exp().mean() + sum;
  });
}

// [cpu]: the clones of this step are smaller than a block of CUDA memory.
TEST_CASE("Nodes that run inside of others free what they have saved", "[budget][cpu]") {
  const Loss loss = [](const at::Tensor& x) {
    at::Tensor y = x.exp().sin();
    const at::Tensor factor = x.cos().exp();
    y.select(0, 1).mul_(factor[0]);  // CopySlices runs the backward of mul_
    return (y.tanh() * factor).exp().sum();
  };
  check_plans(loss, kBytes * 3 / 4);
  CHECK(slots_of(profile_of(loss), "torch::autograd::CopySlices") == 2);
}

TEST_CASE("What an op in place on a view saves is freed by the node around its own", "[budget]") {
  // The nodes that autograd makes anew for the view have higher numbers, but save nothing.
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8});
  const Loss noisy = [&](const at::Tensor& x) {
    const at::Tensor y = x.sin().exp().tanh();
    at::Tensor part = at::real(at::complex(y, y) * 0.5);
    at::rrelu_(part, 0.125, 0.33, /*training=*/true);
    return part.mm(w);
  };
  const StepProfile profile =
      check_outside({noisy, [](const at::Tensor& y) { return y.square().sum(); }});
  CHECK(slots_of(profile, "torch::autograd::CopySlices") == 2);  // the noise, and its result
}

/// Makes a graph of its own, through which its backward goes on another thread, as autograd does
/// where the graph is on another device.
struct GoesOnAnotherThread : torch::autograd::Function<GoesOnAnotherThread> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    const at::AutoGradMode enable(true);
    const at::Tensor inner = x.detach().requires_grad_();
    const at::Tensor result = inner.exp().sin();
    ctx->saved_data["inner"] = inner;
    ctx->saved_data["result"] = result;
    return result.detach();
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* ctx,
                                          const std::vector<at::Tensor>& grads) {
    std::vector<at::Tensor> inner;
    std::thread([&, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard guard(state);
      inner = torch::autograd::grad({ctx->saved_data["result"].toTensor()},
                                    {ctx->saved_data["inner"].toTensor()}, {grads[0]});
    }).join();
    return inner;
  }
};

TEST_CASE("Nodes that run inside of others on another thread free what they have saved",
          "[budget][cpu]") {
  const StepProfile profile = profile_of(
      [](const at::Tensor& x) { return GoesOnAnotherThread::apply(x.sin()).tanh().sum(); });
  CHECK(slots_of(profile, "torch::autograd::CppNode<remat::GoesOnAnotherThread>") == 2);
}

// [cpu]: on CUDA lstm_cell() calls other ops.
TEST_CASE("Parts of a storage that are written in place take its memory once without remat",
          "[budget][cpu]") {
  const at::Tensor weight = torch::ones({32, 8}).mul_(0.1);
  check_plans([&](const at::Tensor& x) {
    const auto [hidden, cell] = at::lstm_cell(x, {x, x}, weight, weight);
    return (hidden * cell).sum();
  });
}

TEST_CASE("What an op in place has cloned and saved is freed by its node", "[budget]") {
  const Loss loss = [](const at::Tensor& x) {
    at::Tensor y = x.sin().clone();
    at::silu_(y);
    at::Tensor z = y.cos().clone();
    at::silu_(z);
    return (z.sin() * y).exp().sum();
  };
  check_plans(loss);
  CHECK(slots_of(profile_of(loss), "SiluBackward0") == 2);
}

// [cpu]: on CUDA outside memory counts by its bytes, not by its block.
TEST_CASE("Memory from outside that a step writes is planned, too", "[budget][cpu]") {
  const at::Tensor mean = torch::zeros({8});
  const at::Tensor variance = torch::ones({8});
  const at::Tensor x0 = step_input();
  check_plans([&](const at::Tensor& x) {
    const at::Tensor a = x.sin().exp();
    const at::Tensor b = torch::batch_norm(a, {}, {}, mean, variance, true, 0.0, 1e-5, false);
    return torch::batch_norm(b.relu_(), {}, {}, mean, variance, true, 0.0, 1e-5, false).exp().sum();
  });
}

// [cpu]: on CUDA outside memory counts by its bytes, not by its block.
TEST_CASE("Memory from outside of which a part is kept is planned as replays put it together",
          "[budget][cpu]") {
  const at::Tensor bank = torch::linspace(-1, 1, 64 * 8).view({64, 8}).clone();
  const Loss loss = [&](const at::Tensor& x) {
    const at::Tensor a = x.exp() + bank[0];
    bank[0].mul_(1.0);
    const at::Tensor b = a.sin().exp().cos();
    return torch::cat({b, b, b, b}, 1).sin().sum();
  };
  check_plans(loss);
  const StepProfile profile = profile_of(loss);
  const auto is_unpacked = [&](const StepValue& value) {
    return value.maker < 0 && value.bytes == 8 * 4 && value.unpacked_bytes == 64 * 8 * 4;
  };
  CHECK(std::count_if(profile.values.begin(), profile.values.end(), is_unpacked) == 1);
}

TEST_CASE("What is written of memory that a custom function has marked as dirty has its bytes",
          "[budget]") {
  // The tape holds the result of Halve; each later in-place op makes another version of it.
  const auto written = [](const at::Tensor& x) {
    const at::Tensor y = Halve::apply(x.clone());
    y.select(0, 1).mul_(1.1);
    y.renorm_(2, 0, 0.9);
    return y;
  };
  const Loss squares = [](const at::Tensor& y) { return y.square().sum(); };
  SECTION("the function lets it go, and a node needs it") {
    check_within({[&](const at::Tensor& x) {
                    const at::Tensor y = written(x.exp()).sin().exp();
                    return torch::cat({y, y, y, y}, 1).sin();
                  },
                  squares});
  }
  SECTION("no result depends on it") {
    check_within({[&](const at::Tensor& x) {
                    const at::Tensor y = written(x);
                    const at::Tensor z = x.sin().exp();
                    return torch::cat({z, z, z, z}, 1).sin().exp().cos();
                  },
                  squares});
  }
}

TEST_CASE("What autograd has saved for a branch that dies with the function is not planned",
          "[budget]") {
  bool keeps = false;
  at::Tensor branch;
  const Loss loss = [&](const at::Tensor& x) {
    const at::Tensor y = x.sin().exp();
    const at::Tensor dead = torch::cat({y, y, y, y}, 1).sin().exp().tanh();
    if (keeps) branch = dead;
    return y.cos().sin().exp().sum();
  };
  check_plans(loss);
  const StepProfile profile = profile_of(loss);
  CHECK(std::count_if(profile.slots.begin(), profile.slots.end(),
                      [](const StepSlot& slot) { return slot.is_dropped(); }) == 3);
  const MemoryPlanner planner(profile);
  const MemoryPlan plan = planner.plan(planner.frontier().front().peak_bytes);
  CHECK(plan.least_budget_bytes <= profile.plain_peak_bytes);
  SECTION("one that does not die then leaves the plan, and is right") {
    keeps = true;
    std::vector<std::string> told;
    const std::shared_ptr<PlannedCuts> cuts = cuts_of(plan);
    cuts->differs = [&](const TapeDifference& difference) { told.push_back(difference.str()); };
    const at::Tensor x = step_input();
    const at::Tensor out = checkpoint({.replay = ReplayEngine::kTape, .plan = cuts})(loss)(x);
    REQUIRE(told.size() == 1);
    CHECK_THAT(told[0], ContainsSubstring("the tensors that autograd saved then at record 3, "
                                          "aten::sin, got others"));
    (out + branch.sum()).backward();
    const at::Tensor plain = step_input();
    const at::Tensor expected = loss(plain);
    (expected + branch.sum()).backward();
    CHECK(same_bits(x.grad(), plain.grad()));
  }
}

TEST_CASE(
    "A replay that begins in the middle of a node counts beside what the node has made by then",
    "[budget]") {
  // CopySlices unpacks the noise after it has copied the gradient; empty_like() takes no memory.
  const Loss squares = [](const at::Tensor& y) { return y.square().sum(); };
  check_outside({[](const at::Tensor& x) {
                   const at::Tensor z = at::complex(x.tanh(), x.sin());
                   at::Tensor y = at::real(z.matmul(z.mH()));
                   torch::dropout_(y, 0.3, true);
                   return y.clone().sin();
                 },
                 squares, true});
}

TEST_CASE("Groups are replayed before a unit puts memory from outside together", "[budget]") {
  const at::Tensor bank = torch::linspace(-1, 1, 64 * 32).view({64, 4, 8});
  const Loss squares = [](const at::Tensor& y) { return y.square().sum(); };
  check_within({[&](const at::Tensor& x) {
                  const at::Tensor a = x.to(at::kDouble).cos().to(at::kFloat).sin();
                  const at::Tensor y = a * (bank.select(0, 4) + 0.5);
                  bank.select(0, 0).copy_(a.detach());
                  at::Tensor z = y.detach();
                  for (int i = 0; i < 8; ++i) z = torch::cat({z, z}, 1).sin().narrow(1, 0, 8);
                  return y.sin().cos().mul(z);
                },
                squares});
}

TEST_CASE("An LSTM cell of which only the state is used is planned as it runs", "[budget]") {
  const at::Tensor w = torch::linspace(-1, 1, 32 * 8).view({32, 8}).requires_grad_();
  const Loss squares = [](const at::Tensor& y) { return y.square().sum(); };
  check_within({[&](const at::Tensor& x) {
                  const at::Tensor c = std::get<1>(torch::lstm_cell(x, {x, x}, w.mul(2), w.mul(3)));
                  return torch::cat({c, c, c, c}, 1).sin().exp().cos();
                },
                squares});
}

TEST_CASE("A loss that is computed outside of the function is predicted, too", "[budget]") {
  const at::Tensor w = torch::linspace(-1, 1, 8 * 128).view({128, 8});
  const Loss logits = [&](const at::Tensor& x) {
    return torch::linear(x.sin().exp().cos().tanh().sinh().exp(), w);
  };
  const int64_t bytes = 16 * kBytes;
  const Loss likelihood = [](const at::Tensor& y) {
    return -torch::log_softmax(y, 1).select(1, 3).mean();
  };
  SECTION("before backward it drops what the function returns") {
    const StepProfile profile = check_outside({logits, likelihood});
    CHECK(result_of(profile).bytes == bytes);
    CHECK(result_of(profile).released == 0);
    CHECK(profile.gap_bytes >= bytes);
  }
  SECTION("it holds that to the end") {
    const StepProfile profile = check_outside({logits, likelihood, true});
    CHECK(result_of(profile).released == -1);
    CHECK(profile.gap_bytes >= bytes);
  }
  SECTION("it saves that for its own backward") {
    const Loss squares = [](const at::Tensor& y) { return y.square().mean(); };
    const StepProfile profile = check_outside({logits, squares});
    CHECK(result_of(profile).released == 2);  // after the nodes of mean and square
  }
  SECTION("the function saves that, too") {
    const Loss wide = [&](const at::Tensor& x) { return logits(x).sigmoid().tanh(); };
    CHECK(result_of(check_outside({wide, likelihood})).released == 0);
    check_outside({wide, likelihood, true});
    check_outside({[&](const at::Tensor& x) { return logits(x).mul(2).tanh_(); }, likelihood});
  }
}

TEST_CASE("A profile runs its steps, and leaves gradients alone", "[budget]") {
  const at::Tensor count = torch::zeros({8});
  const at::Tensor x = step_input();
  x.mutable_grad() = torch::full({4, 8}, 7.0);
  const at::Tensor gradient = x.grad();
  profile({.steps = 2})([&](const at::Tensor& t) {
    count.add_(1);
    return torch::dropout(t.exp(), 0.5, true).sum();
  })(x);
  CHECK(count.eq(3).all().item<bool>());
  CHECK(x.grad().is_same(gradient));
  CHECK(gradient.eq(7).all().item<bool>());
  CHECK(memory_report().regions.empty());
}

TEST_CASE("A leaf that the loss alone reads counts with its gradient, which is left alone",
          "[budget]") {
  const at::Tensor head = torch::linspace(-1, 1, 32).view({4, 8}).requires_grad_();
  const OutsideLoss step{[](const at::Tensor& x) { return x.sin().cos().exp(); },
                         [&](const at::Tensor& t) { return t.mul(head).sum(); }};
  const int64_t plain_peak = run(step, {}).first;
  const auto profile = [&] {
    OutsideLossRunner runner(step);
    return profile_steps(runner, {.name = "outside", .steps = 2});
  };
  head.mutable_grad() = at::Tensor();
  CHECK(profile().plain_peak_bytes == plain_peak);
  CHECK_FALSE(head.grad().defined());
  const at::Tensor gradient = torch::full({4, 8}, 7.0);
  head.mutable_grad() = gradient;
  CHECK(profile().plain_peak_bytes == plain_peak - block_bytes(4 * 8 * 4));
  CHECK(head.grad().is_same(gradient));
  CHECK(gradient.eq(7).all().item<bool>());
}

TEST_CASE("What cannot be profiled is refused", "[budget][errors]") {
  CHECK_THAT(error_text([] {
               profile({.steps = 0})([](const at::Tensor& x) { return x.sum(); })(step_input());
             }),
             ContainsSubstring("[profile] steps: expected 1 or more, got 0"));
  CHECK_THAT(error_text([] { profile_of([](const at::Tensor& x) { return x.sum(); }); }),
             ContainsSubstring("[profile] 'step'") && ContainsSubstring("nothing to plan"));
  int calls = 0;
  CHECK_THAT(error_text([&] {
               profile({.steps = 2})([&](const at::Tensor& x) {
                 return (++calls % 2 == 0 ? x.sin() : x.cos()).exp().sum();
               })(step_input());
             }),
             ContainsSubstring("expected each step to run the same ops, got others in step 1"));
  CHECK_THAT(error_text([&] {
               profile_of([](const at::Tensor& x) {
                 profile_of([](const at::Tensor& y) { return y.exp().sum(); }, x);
                 return x.exp().sum();
               });
             }),
             ContainsSubstring("outside of regions, got one in region 'step"));
  const auto refusal = [](const Loss& loss, const at::Tensor& x = step_input()) {
    return error_text([&] { profile_of(loss, x); });
  };
  CHECK_THAT(
      refusal([](const at::Tensor& x) {
        return checkpoint({.name = "inner"})([](const at::Tensor& y) { return y.exp().sin(); })(x)
            .exp()
            .sum();
      }),
      ContainsSubstring("without regions of its own, got region 'inner'"));
  CHECK_THAT(refusal([](const at::Tensor& x) { return x.exp().sum(); }, step_input().sin()),
             ContainsSubstring("to be leaves") && ContainsSubstring("made by SinBackward0"));
  CHECK_THAT(refusal([written = torch::ones({4, 8})](const at::Tensor& x) {
               return written.copy_(x.exp()).sin().sum();
             }),
             ContainsSubstring("to be leaves") && ContainsSubstring("CopyBackwards"));
  CHECK_THAT(error_text([] {
               const torch::NoGradGuard none;
               profile_of([](const at::Tensor& x) { return x.exp().sum(); });
             }),
             ContainsSubstring("expected grad mode"));
  CHECK_THAT(error_text([] {
               checkpoint({.name = "around"})([](const at::Tensor& x) {
                 profile_of([](const at::Tensor& y) { return y.exp().sum(); });
                 return x.exp();
               })(step_input());
             }),
             ContainsSubstring("outside of regions, got one in region 'around'"));
  CHECK(memory_report().regions.empty());
}

TEST_CASE("In a planned step named calls are plain calls of their functions", "[budget][profile]") {
  const Loss loss = [](const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < 3; ++i) {  // one name for all layers
      y = native_op([](const at::Tensor& t) { return t.tanh(); }, "act", Policy::kSave)(y.sin());
      y = native_op([](const at::Tensor& t) { return t.exp(); }, "exp", Policy::kOffload)(y * 0.5);
    }
    return y.sum();
  };
  check_plans(loss);
  const Loss without_calls = [](const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < 3; ++i) y = (y.sin().tanh() * 0.5).exp();
    return y.sum();
  };
  CHECK(ops_of(profile_of(loss)) == ops_of(profile_of(without_calls)));
}

TEST_CASE("A recording has the plan of each region that runs by one", "[budget][profile]") {
  const Loss loss = [](const at::Tensor& x) { return x.sin().exp().tanh().sum(); };
  const MemoryPlanner planner(profile_of(loss));
  const MemoryPlan plan = planner.plan(planner.frontier().front().peak_bytes);
  const auto planned = [&](const std::string& name) {
    return checkpoint({.name = name, .replay = ReplayEngine::kTape, .plan = cuts_of(plan)})(loss);
  };
  const Recording recording = test::recording_of([&](const Recorder&) {
    run(planned("first"));
    const Loss second = planned("second");
    run(second);
    run(second);
  });
  REQUIRE(recording.plans.size() == 2);
  CHECK(recording.text(recording.plans[0].label) == "first");
  CHECK(recording.text(recording.plans[1].label) == "second");
  CHECK(recording.plans[1].budget_bytes == plan.budget_bytes);
  CHECK(recording.plans[1].predicted_peak_bytes == plan.predicted_peak_bytes);
  CHECK(recording.plans[1].plain_peak_bytes == plan.profile->plain_peak_bytes);
  CHECK(recording.text(recording.plans[1].plan) == plan.to_json());
}

}  // namespace remat
