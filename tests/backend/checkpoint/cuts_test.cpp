// SPDX-License-Identifier: BSD-3-Clause

// Tapes cut into segments and groups: bitwise results, kept bytes, and how often each op runs.
#include <torch/torch.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/cut_step.h"
#include "support/default_device.h"
#include "support/error_text.h"
#include "support/gpt.h"
#include "support/named_step.h"

namespace remat {
namespace {

/// Checks each cut alone, all at once, and all in groups of two with groups of four around them.
void check_all_cuts(const TensorFn& fn, const Tensors& weights = {}) {
  const size_t records = ops_of(fn).size();
  REQUIRE(records > 4);
  Cuts all;
  for (size_t i = 1; i < records; ++i) {
    INFO("cut before record " << i);
    check_cut(fn, {.positions = {i}}, weights);
    check_cut(fn, {.positions = {i}, .groups = {{0, 2}}}, weights);
    check_cut(fn, {.positions = {i}, .keep = every_value(fn)}, weights);
    all.positions.push_back(i);
  }
  check_cut(fn, all, weights);
  for (size_t i = 0; i + 2 <= all.segment_count(); i += 2) all.groups.push_back({i, i + 2});
  for (size_t i = 0; i + 4 <= all.segment_count(); i += 4) all.groups.push_back({i, i + 4});
  check_cut(fn, all, weights);
}

at::Tensor weight() {
  return torch::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
}

/// Six segments of two records: an op whose backward needs its argument, and a square.
at::Tensor six(const at::Tensor& x) {
  const auto square = [](const at::Tensor& t) { return t * t; };
  return square(square(square(square(square(square(x.sin()).cos()).atan()).erf()).asinh()).sinh());
}

Cuts six_segments(std::vector<Cuts::Group> groups = {}) {
  return {.positions = {2, 4, 6, 8, 10}, .groups = std::move(groups)};
}

}  // namespace

TEST_CASE("A tape may be cut before any record", "[backend][cuts]") {
  const at::Tensor w = weight();
  check_all_cuts(six);
  check_all_cuts(
      [&](const at::Tensor& x) {
        const at::Tensor mid = x + torch::linear(torch::layer_norm(x, {8}), w).softmax(-1);
        return mid + torch::gelu(mid.mm(w));
      },
      {w});
}

TEST_CASE("Views, in-place writes and random numbers cross cuts", "[backend][cuts]") {
  const at::Tensor w = weight();
  check_all_cuts([](const at::Tensor& x) {
    at::Tensor y = x.clone();
    y.mul_(2).select(0, 1).add_(y.detach().sin()[0]);
    const at::Tensor z = y.exp();
    y.narrow(1, 2, 3).sigmoid_();
    at::Tensor s = x.detach().sin();
    const at::Tensor t = s.exp();
    s.add_(1);
    return (y * z).tanh() * z.sin() * s * t;
  });
  check_all_cuts([](const at::Tensor& x) {
    const auto parts = x.sin().t().chunk(2, 0);
    const at::Tensor late = torch::cat({parts[1].exp(), parts[0].transpose(0, 1).t()}, 0).sin();
    return late * parts[0].sum() * torch::dropout(late, 0.5, true);
  });
  check_all_cuts(
      [&](const at::Tensor& x) {
        const at::Tensor a = torch::dropout(x.mm(w), 0.5, true);
        const at::Tensor b = a.mm(w) * torch::rand({4, 8});
        return torch::dropout(b, 0.3, true).tanh() + a.relu();
      },
      {w});
}

TEST_CASE("Outside tensors that segments write keep the values that each segment read",
          "[backend][cuts]") {
  const auto fn = [](const at::Tensor& state, const at::Tensor& x) {
    const at::Tensor a = x.sin() + state;
    state.add_(a.detach().sum(0));
    const at::Tensor b = a.exp() + state;
    state.mul_(0.5);
    return (b + state).tanh() + state;
  };
  const size_t records =
      ops_of([&](const at::Tensor& x) { return fn(torch::ones({8}), x); }).size();
  for (size_t i = 1; i < records; ++i) {
    for (const bool grouped : {false, true}) {
      CAPTURE(i, grouped);
      Cuts cuts{.positions = {i}};
      if (grouped) cuts.groups = {{0, 2}};
      const at::Tensor state = torch::ones({8});
      const at::Tensor plain_state = torch::ones({8});
      const at::Tensor x = step_input();
      const at::Tensor y =
          checkpoint(with_cuts(cuts))([&](const at::Tensor& t) { return fn(state, t); })(x);
      state.zero_();  // The write for the next step comes before this step's backward.
      y.sum().backward();
      const at::Tensor plain_x = step_input();
      const at::Tensor plain_y = fn(plain_state, plain_x);
      plain_y.sum().backward();
      CHECK(same_bits(y, plain_y));
      CHECK(same_bits(x.grad(), plain_x.grad()));
    }
  }
}

TEST_CASE("A replay takes memory for what a write overwrites once, and leaves alone what is kept",
          "[backend][cuts]") {
  // With several rows, the replay's write may use the bank that is put together with the kept row.
  // With one row, the kept copy is the whole bank, which the write must not use.
  for (const int64_t rows : {6, 1}) {
    CAPTURE(rows);
    const auto make_bank = [&] {
      return torch::linspace(-1, 1, rows * 32).view({rows, 4, 8}).clone();
    };
    const auto run = [](const at::Tensor& bank, const at::Tensor& x) {
      const at::Tensor a = x + bank[0];
      bank[0].mul_(a.detach());
      return (a * bank[0]).exp();
    };
    const at::Tensor bank = make_bank();
    const at::Tensor x = step_input();
    const at::Tensor y =
        checkpoint(with_cuts(Cuts()))([&](const at::Tensor& t) { return run(bank, t); })(x);
    const size_t row = bank[0].nbytes();
    CHECK(memory_report().bytes == row);  // the old value of bank[0]
    const at::Tensor loss = y.sum();
    const auto backward = [&] {
      const MemoryMeter meter;
      const at::Tensor gradient = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
      return std::pair(meter.peak_bytes(default_device()), gradient);
    };
    const auto [peak, gradient] = backward();
    // Alive are the gradient of the loss, the bank, and at most two of: x + bank[0], the product,
    // exp's result and the gradients.
    CHECK(peak == block_bytes(4) + block_bytes(static_cast<int64_t>(bank.nbytes())) +
                      2 * block_bytes(static_cast<int64_t>(row)));
    CHECK(same_bits(backward().second, gradient));

    const at::Tensor plain_bank = make_bank();
    const at::Tensor plain_x = step_input();
    run(plain_bank, plain_x).sum().backward();
    CHECK(same_bits(gradient, plain_x.grad()));
    CHECK(same_bits(bank, plain_bank));
  }
}

TEST_CASE("A branch that the function drops keeps nothing of memory that is written afterwards",
          "[backend][cuts]") {
  const at::Tensor w = weight();
  const auto check_drop = [&](const TensorFn& fn) {
    for (const size_t grouped : {0, 2, 3}) {
      CAPTURE(grouped);
      Cuts cuts{.positions = {1, 2, 3, 4, 5}};
      if (grouped > 0) cuts.groups = {{0, grouped}};
      {
        const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
        CHECK(memory_report().bytes == 0);  // x and w are leaves, and no other value is needed
      }
      check_cut(fn, cuts, {w});
    }
  };
  // The function still holds its result when the branch's segments end.
  const auto rest = [&](const at::Tensor& x) { return x.mm(w).neg().neg().neg().neg(); };
  const at::Tensor statistics = torch::ones({2, 8});
  check_drop([&](const at::Tensor& x) {
    const at::Tensor dropped = torch::batch_norm(x, w[0], w[1], statistics[0], statistics[1],
                                                 /*training=*/true, 0.1, 1e-5, false);
    return rest(x);
  });
  // One segment writes the table, the next reads it, and the third saves the value read.
  at::Tensor table = torch::linspace(-2, 2, 32).view({4, 8}).clone();
  const at::Tensor rows = torch::arange(4);
  check_drop([&](const at::Tensor& x) {
    torch::embedding_renorm_(table, rows, 0.7, 2);
    const at::Tensor dropped = x * torch::embedding(table, rows);
    return rest(x);
  });
}

TEST_CASE("Each op runs once more for its segment and once per group that needs it",
          "[backend][cuts]") {
  const at::Tensor x = step_input();
  const at::Tensor y = checkpoint(with_cuts(six_segments({{0, 4}, {0, 2}})))(six)(x);
  const int64_t bytes = y.numel() * 4;
  // Two values cross: from segment 3 to 4, and from 4 to 5; x is a leaf.
  CHECK(memory_report().bytes == static_cast<size_t>(2 * bytes));
  OpCounts counts;
  y.sum().backward();
  // sin runs for segments 0 to 3, for 0 and 1, and for 0; the backward of cos calls sin once more.
  CHECK(counts["aten::sin"] == 3 + 1);
  CHECK(counts["aten::cos"] == 2 + 1);
  CHECK(counts["aten::atan"] == 2);
  CHECK(counts["aten::erf"] == 1);
  CHECK(counts["aten::asinh"] == 1);
  CHECK(counts["aten::sinh"] == 1);
  CHECK(memory_report().regions.empty());
}

TEST_CASE("12 blocks of GPT-2, cut at half blocks, keep what crosses the cuts of no group",
          "[backend][cuts]") {
  torch::manual_seed(3);
  const GptSizes sizes{.vocabulary = 8, .length = 16, .width = 32, .heads = 2, .layers = 12};
  std::vector<std::shared_ptr<GptBlock>> blocks;
  Tensors weights;
  for (int i = 0; i < 12; ++i) {
    blocks.push_back(std::make_shared<GptBlock>(sizes, at::kFloat));
    for (const at::Tensor& parameter : blocks.back()->parameters()) weights.push_back(parameter);
  }
  const at::Tensor mask = torch::ones({16, 16}, at::kBool).triu(1);
  const TensorFn fn = [&](const at::Tensor& input) {
    at::Tensor x = input;
    for (const auto& block : blocks) x = block->forward(x, mask);
    return x;
  };
  const auto input = [] { return torch::linspace(-1, 1, 1024).view({2, 16, 32}).requires_grad_(); };
  constexpr size_t kActivation = 2 * 16 * 32 * 4;

  // A residual addition ends each half block.
  Cuts cuts;
  const std::vector<std::string> ops = ops_of(fn, input());
  for (size_t i = 0; i + 1 < ops.size(); ++i) {
    if (ops[i] == "aten::add.Tensor") cuts.positions.push_back(i + 1);
  }
  REQUIRE(cuts.segment_count() == 24);
  const auto run = [&](const TensorFn& model) {
    for (at::Tensor parameter : weights) parameter.mutable_grad() = at::Tensor();
    torch::manual_seed(7);
    const at::Tensor x = input();
    const at::Tensor y = model(x);
    Tensors results{y.detach()};
    const MemoryReport report = memory_report();
    MemoryMeter meter;
    y.sum().backward();
    results.push_back(x.grad());
    int64_t grads = 0;
    for (const at::Tensor& parameter : weights) grads += parameter.grad().nbytes();
    for (const at::Tensor& parameter : weights) results.push_back(parameter.grad());
    return std::tuple(results, report.bytes, meter.peak_bytes(default_device()) - grads);
  };
  const auto [plain, none, plain_peak] = run(fn);
  CHECK(none == 0);

  // The 23 activations between 24 segments are kept.
  const auto [flat, flat_bytes, flat_peak] = run(checkpoint(with_cuts(cuts))(fn));
  check_same(flat, plain);
  CHECK(flat_bytes == 23 * kActivation);

  // In groups of 8 half blocks, the two activations between groups are kept.
  cuts.groups = {{0, 8}, {8, 16}, {16, 24}};
  const auto [grouped, grouped_bytes, grouped_peak] = run(checkpoint(with_cuts(cuts))(fn));
  check_same(grouped, plain);
  CHECK(grouped_bytes == 2 * kActivation);
  // Beside the memory of one half block, backward holds the 7 activations inside a group.
  CHECK(grouped_peak <= flat_peak + 7 * static_cast<int64_t>(kActivation));

  // Three levels: groups of 16, 8 and 4 half blocks. Only values that leave the outermost group are
  // kept.
  cuts.groups = {{0, 16}, {0, 8}, {0, 4}};
  const auto [nested, nested_bytes, nested_peak] = run(checkpoint(with_cuts(cuts))(fn));
  check_same(nested, plain);
  CHECK(nested_bytes == 8 * kActivation);  // the ends of segments 15 to 22

  // One region around the whole function keeps nothing, but has everything in memory in backward.
  const auto [whole, whole_bytes, whole_peak] =
      run(checkpoint({.name = "r", .replay = ReplayEngine::kTape})(fn));
  check_same(whole, plain);
  CHECK(whole_bytes == 0);
  CHECK(flat_peak * 3 < whole_peak);
}

TEST_CASE("A segment's policy keeps what its rules match, if backward wants it",
          "[backend][cuts][policy]") {
  const at::Tensor w = weight();
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor a = x.sin().mm(w).exp();
    const at::Tensor b = a.sin().mm(w).exp();
    return torch::linear(b.sin(), w).exp();
  };
  const std::vector<std::string> ops = ops_of(fn);
  Cuts cuts;
  for (size_t i = 0; i + 1 < ops.size(); ++i) {
    if (ops[i] == "aten::exp") cuts.positions.push_back(i + 1);
  }
  REQUIRE(cuts.segment_count() == 3);
  const auto kept = [&](std::vector<std::shared_ptr<const RegionPolicy>> policies,
                        std::vector<Cuts::Group> groups = {}) {
    cuts.policies = std::move(policies);
    cuts.groups = std::move(groups);
    check_cut(fn, cuts, {w});
    const at::Tensor y = checkpoint(with_cuts(cuts))(fn)(step_input());
    return memory_report().bytes / (32 * sizeof(float));
  };
  const auto rule = [](const char* op, Policy policy = Policy::kSave) {
    return make_policy(PolicyTable().op(op, policy));
  };
  CHECK(kept({}) == 2);                                     // values that cross the cuts
  CHECK(kept({rule("aten::sin"), nullptr, nullptr}) == 3);  // and sin's result
  // exp's backward needs its result, which crosses; then nothing needs the result of mm.
  CHECK(kept({rule("aten::exp"), rule("aten::mm"), nullptr}) == 2);
  CHECK(kept({nullptr, nullptr, rule("aten::linear")}) == 3);
  CHECK(kept({nullptr, nullptr, rule("aten::exp")}) == 3);
  // Inside a group the value is kept by the group's replay, not by the forward.
  CHECK(kept({rule("aten::sin"), rule("aten::sin"), nullptr}, {{0, 2}}) == 1);
  CHECK(kept({rule("aten::sin"), rule("aten::sin"), rule("aten::sin")}, {{0, 3}}) == 0);

  const auto offloading = [&](std::shared_ptr<OffloadStore> store) {
    CheckpointOptions options = with_cuts(cuts);
    options.cuts.groups = {};
    options.cuts.policies = {rule("aten::sin", Policy::kOffload), nullptr, nullptr};
    options.offload_store = std::move(store);
    return checkpoint(options)(fn);
  };
  check_same(step(offloading(host_memory_store()), {w}), step(fn, {w}));
  CHECK_THAT(error_text([&] { offloading(nullptr)(step_input()); }),
             ContainsSubstring("'r, segment 0'") && ContainsSubstring("offload_store"));
}

TEST_CASE("A region's policy is that of all its segments", "[backend][cuts][policy]") {
  CheckpointOptions options = with_cuts(six_segments());
  options.policy = make_policy(PolicyTable().op("aten::mul", Policy::kSave));
  check_same(step(checkpoint(options)(six)), step(six));
  options.policy = make_policy(PolicyTable().op("aten::sin", Policy::kSave));
  const at::Tensor y = checkpoint(options)(six)(step_input());
  CHECK(memory_report().bytes == 6 * 32 * sizeof(float));
  OpCounts counts;
  y.sum().backward();
  CHECK(counts["aten::sin"] == 1);  // called by the backward of cos
  CHECK(counts["aten::erf"] == 1);
}

TEST_CASE("Cut graphs are kept, differentiated twice, and in part", "[backend][cuts]") {
  const Cuts cuts = six_segments({{0, 4}, {1, 3}});
  const auto twice = [](const TensorFn& fn) {
    const at::Tensor x = step_input();
    const at::Tensor y = fn(x);
    y.sum().backward({}, /*retain_graph=*/true);
    y.sum().backward();
    return x.grad();
  };
  CHECK(same_bits(twice(checkpoint(with_cuts(cuts))(six)), twice(six)));
  const auto second = [](const TensorFn& fn) {
    const at::Tensor x = step_input();
    const at::Tensor first = torch::autograd::grad({fn(x).sum()}, {x}, {}, /*retain_graph=*/true,
                                                   /*create_graph=*/true)[0];
    return torch::autograd::grad({first.sum()}, {x})[0];
  };
  CHECK(same_bits(second(checkpoint(with_cuts(cuts))(six)), second(six)));
  const at::Tensor w = weight();
  const auto part = [&](const TensorFn& fn) {
    return torch::autograd::grad({fn(step_input()).sum()}, {w})[0];
  };
  const TensorFn late = [&](const at::Tensor& x) { return six(x).mm(w).sin(); };
  CHECK(same_bits(part(checkpoint(with_cuts(cuts))(late)), part(late)));
  CHECK(memory_report().regions.empty());
}

TEST_CASE("Cut regions nest with regions", "[backend][cuts]") {
  const at::Tensor w = weight();
  const TensorFn inner = [&](const at::Tensor& x) { return x.sin().mm(w).exp().sin().mm(w); };
  const TensorFn outer = [&](const at::Tensor& x) {
    return inner(inner(x.sin()).exp().sin()).tanh();
  };
  const TensorFn regions_inside = [&](const at::Tensor& x) {
    const auto region = checkpoint({.name = "inner"})(inner);
    return region(region(x.sin()).exp().sin()).tanh();
  };
  check_same(
      step(checkpoint(with_cuts({.positions = {2, 5, 7}, .groups = {{0, 2}}}))(regions_inside),
           {w}),
      step(outer, {w}));
  const TensorFn cut_inside = [&](const at::Tensor& x) {
    const auto region = checkpoint(with_cuts({.positions = {1, 3}, .groups = {{1, 3}}}))(inner);
    return region(region(x.sin()).exp().sin()).tanh();
  };
  check_same(step(checkpoint({.name = "outer"})(cut_inside), {w}), step(outer, {w}));
}

TEST_CASE("SAVE calls work in a cut region", "[backend][cuts]") {
  const at::Tensor w = weight();
  const TensorFn fn = [&](const at::Tensor& x) {
    const auto mm = [&](const at::Tensor& t) { return t.sin().mm(w).exp(); };
    const at::Tensor a = save("a", mm)(x.cos());
    at::Tensor b = save("b", mm)(a.sin()) + 1;
    b.mul_(2);
    return save("c", exp_of)(b.tanh() * a).sin();
  };
  const size_t records = ops_of(fn).size();
  for (size_t i = 1; i < records; ++i) {
    CAPTURE(i);
    check_cut(fn, {.positions = {i}}, {w});
    check_cut(fn, {.positions = {i}, .groups = {{0, 2}}}, {w});
  }
}

TEST_CASE("Threads run the segments of one graph", "[backend][cuts][threads]") {
  const at::Tensor expected = step(six)[1];
  for (int round = 0; round < 50; ++round) {
    const at::Tensor x = step_input();
    const at::Tensor y = checkpoint(with_cuts(six_segments({{0, 4}, {1, 3}})))(six)(x);
    const at::Tensor seed = y.detach();
    std::vector<at::Tensor> grads(4);
    std::vector<std::thread> threads;
    for (at::Tensor& grad : grads)
      threads.emplace_back([&] { grad = torch::autograd::grad({y}, {x}, {seed}, true)[0]; });
    for (std::thread& thread : threads) thread.join();
    for (const at::Tensor& grad : grads) REQUIRE(same_bits(grad, expected));
  }
}

TEST_CASE("Invalid cuts are refused", "[backend][cuts][errors]") {
  const auto refusal = [](const Cuts& cuts) {
    return error_text([&] { checkpoint(with_cuts(cuts))(six)(step_input()); });
  };
  CHECK_THAT(refusal({.positions = {3, 2}}),
             ContainsSubstring(
                 "[checkpoint] region 'r': cuts.positions[1]: expected a record after 3, got 2"));
  CHECK_THAT(refusal({.positions = {0}}), ContainsSubstring("cuts.positions[0]"));
  CHECK_THAT(refusal({.positions = {2, 4, 6}, .groups = {{0, 2}, {1, 3}}}),
             ContainsSubstring("cuts.groups[1]") && ContainsSubstring("across {0, 2}"));
  CHECK_THAT(refusal({.positions = {2, 4}, .groups = {{1, 4}}}),
             ContainsSubstring("cuts.groups[0]") && ContainsSubstring("3 segments"));
  CHECK_THAT(refusal({.positions = {2, 4}, .groups = {{1, 2}}}), ContainsSubstring("two or more"));
  CHECK_THAT(refusal({.positions = {2, 4}, .groups = {{0, 2}, {0, 2}}}), ContainsSubstring("once"));
  CHECK_THAT(refusal({.positions = {2, 4}, .policies = {nullptr}}),
             ContainsSubstring("cuts.policies") && ContainsSubstring("3 segments, got 1"));
  CHECK_THAT(refusal({.positions = {2, 99}}), ContainsSubstring("region 'r': cuts.positions[1]") &&
                                                  ContainsSubstring("of 12, got 99"));
  CheckpointOptions options = with_cuts({.positions = {2}});
  options.replay = ReplayEngine::kAuto;
  CHECK_THAT(error_text([&] { checkpoint(options); }), ContainsSubstring("replay = kTape"));
}

TEST_CASE("A cut region refuses what it cannot replay, and all state unwinds",
          "[backend][cuts][errors]") {
  const auto region = checkpoint(with_cuts({.positions = {2}}));
  CHECK_THAT(error_text([&] {
               region([](const at::Tensor& x) {
                 at::Tensor y = x.detach().sin();
                 y.resize_({2, 2});
                 return x.sum() * y.sum();
               })(step_input());
             }),
             ContainsSubstring("region 'r'") && ContainsSubstring("aten::resize_"));
  CHECK_THAT(error_text([&] {
               region([](const at::Tensor& x) -> at::Tensor {
                 x.sin().exp().sin();
                 throw std::runtime_error("mine");
               })(step_input());
             }),
             ContainsSubstring("mine"));
  CHECK(memory_report().regions.empty());
  check_cut(six, six_segments());
}

TEST_CASE("A tensor that crosses a cut may not be written between forward and backward",
          "[backend][cuts][errors]") {
  at::Tensor leaked;
  const at::Tensor y = checkpoint(with_cuts({.positions = {2}}))([&](const at::Tensor& x) {
    leaked = x.sin().exp();
    return leaked.sin();
  })(step_input());
  leaked.detach().add_(1);
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring("modified by an inplace operation") &&
                 ContainsSubstring("region 'r, segment 1'"));
}

TEST_CASE("The report lists what crosses each cut", "[backend][cuts]") {
  const at::Tensor y = checkpoint(with_cuts(six_segments({{0, 4}})))(six)(step_input());
  const std::string text = memory_report().str();
  CHECK_THAT(text, ContainsSubstring("region 'r, segment 4'") &&
                       ContainsSubstring("= aten::mul.Tensor") &&
                       ContainsSubstring("made before the cut") &&
                       ContainsSubstring("region 'r, segments 0 to 3'"));
}

TEST_CASE("A tensor that crosses is freed when the last segment that reads it has run",
          "[backend][cuts]") {
  std::vector<size_t> kept;
  const at::Tensor x = step_input();
  const at::Tensor head = x.exp();
  head.register_hook([&](const at::Tensor&) { kept.push_back(memory_report().bytes); });
  const at::Tensor y = checkpoint(with_cuts(six_segments()))(six)(head);
  const size_t bytes = 32 * sizeof(float);
  CHECK(memory_report().bytes == 6 * bytes);  // five values that cross, and the argument
  y.sum().backward();
  REQUIRE(kept.size() == 1);
  CHECK(kept[0] <= bytes);
}

TEST_CASE("A tensor that crosses a cut as bytes has its values in a region with a tape",
          "[backend][cuts]") {
  // The cut is between empty_like and fill_.
  const TensorFn inner = [](const at::Tensor& t) {
    return (t.sin() * torch::empty_like(t).fill_(2.0)).exp();
  };
  const TensorFn outer = [&](const at::Tensor& x) {
    CheckpointOptions options{.name = "bytes", .replay = ReplayEngine::kTape};
    options.cuts.positions = {2};
    return checkpoint(options)(inner)(x.cos());
  };
  for (int trusted = 0; trusted < 2; ++trusted) {
    const Tensors got =
        step(checkpoint({.name = "around bytes", .replay = ReplayEngine::kTape})(outer), {});
    check_same(got, step([&](const at::Tensor& x) { return inner(x.cos()); }, {}));
  }
}

TEST_CASE("Memory that nobody has written does not cross a cut", "[backend][cuts]") {
  const auto noisy = [](const at::Tensor& x) {
    const at::Tensor noise = torch::empty_like(x);
    return (x.sin() * noise.bernoulli_(0.5)).exp().cos();
  };
  const auto kept = [&](const Cuts& cuts) {
    const at::Tensor y = checkpoint(with_cuts(cuts))(noisy)(step_input());
    return memory_report().bytes;
  };
  const size_t bytes = 32 * sizeof(float);
  REQUIRE(ops_of(noisy)[0] == "aten::empty_like");
  CHECK(kept({.positions = {1}}) == 0);
  CHECK(kept({.positions = {2}}) == bytes);  // The cut comes after the first write.
  check_all_cuts(noisy);
}

TEST_CASE("A cut between empty() and its first write is right in every kind of region",
          "[backend][cuts]") {
  const TensorFn noisy = [](at::Tensor t) { return torch::dropout_(t, 0.5, true).sin(); };
  const auto nest = [&](const CheckpointOptions& middle, const CheckpointOptions& outer) {
    const TensorFn inner = checkpoint(
        {.name = "cut noise", .replay = ReplayEngine::kTape, .cuts = {.positions = {1}}})(noisy);
    const TensorFn around =
        checkpoint(middle)([=](const at::Tensor& t) { return inner(t.cos()) * t; });
    return TensorFn(checkpoint(outer)([=](const at::Tensor& x) { return around(x.exp()) + x; }));
  };
  const TensorFn plain = [&](const at::Tensor& x) {
    const at::Tensor t = x.exp();
    return noisy(t.cos()) * t + x;
  };
  for (const auto middle : {ReplayEngine::kTape, ReplayEngine::kFunction}) {
    for (const auto outer : {ReplayEngine::kTape, ReplayEngine::kFunction}) {
      torch::manual_seed(3);
      const Tensors got =
          step(nest({.name = "middle", .replay = middle}, {.name = "outer", .replay = outer}), {});
      torch::manual_seed(3);
      check_same(got, step(plain, {}));
    }
  }
}

TEST_CASE("A buffer that a region inside fills first is right in every kind of region",
          "[backend][cuts]") {
  const auto fill = [](const at::Tensor& t, const at::Tensor& buffer) {
    buffer.uniform_();
    return t * buffer.cos();
  };
  const auto nest = [&](ReplayEngine inner, ReplayEngine middle) {
    const auto filled = checkpoint({.name = "fill", .replay = inner})(fill);
    const TensorFn around = checkpoint({.name = "around fill", .replay = middle})(
        [=](const at::Tensor& t) { return filled(t.cos(), torch::empty_like(t)).sin(); });
    return TensorFn(
        checkpoint({.name = "all"})([=](const at::Tensor& x) { return around(x.exp()); }));
  };
  const TensorFn plain = [&](const at::Tensor& x) {
    return fill(x.exp().cos(), torch::empty_like(x)).sin();
  };
  for (const auto inner : {ReplayEngine::kTape, ReplayEngine::kFunction}) {
    for (const auto middle : {ReplayEngine::kTape, ReplayEngine::kFunction}) {
      torch::manual_seed(3);
      const Tensors got = step(nest(inner, middle), {});
      torch::manual_seed(3);
      check_same(got, step(plain, {}));
    }
  }
}

TEST_CASE("A SAVE call may write what crosses a cut", "[backend][cuts]") {
  check_all_cuts([](const at::Tensor& x) {
    const at::Tensor h = x * 1.5;
    const at::Tensor a = h * 2;
    const at::Tensor b = h + a;
    const at::Tensor c = save("write", [](at::Tensor t) { return t.add_(1).clone(); })(h);
    return (c + b).sin().exp() * h.detach();
  });
}

}  // namespace remat
