// SPDX-License-Identifier: BSD-3-Clause

// Memory that regions keep, when they release it, and how often their functions run.
#include <remat/remat.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/default_device.h"
#include "support/error_text.h"
#include "support/heap_bytes.h"
#include "support/same_bits.h"

namespace {

using remat::checkpoint;
using remat::default_device;
using remat::MemoryMeter;

constexpr int64_t kLayerBytes = 4096;  // 1,024 x 4 B
const int64_t kScalarBytes = remat::block_bytes(4);

at::Tensor layer_input() {
  return torch::rand({1024}).requires_grad_();
}

// Equal layers, divided in halves down to single layers: each half is a region inside the region of
// the whole.
class NestedChain {
 public:
  explicit NestedChain(int layers, bool early_stop = true) : runs_(layers) {
    options_.early_stop = early_stop;
  }

  at::Tensor run(const at::Tensor& x) { return run(0, static_cast<int>(runs_.size()), x); }
  const std::vector<int>& runs() const { return runs_; }

 private:
  at::Tensor run(int begin, int end, const at::Tensor& x) {
    if (end - begin == 1) {
      ++runs_[begin];
      return x.sin();  // saves its input, which is the output of one layer
    }
    const int middle = (begin + end) / 2;
    return region(middle, end, region(begin, middle, x));
  }

  at::Tensor region(int begin, int end, const at::Tensor& x) {
    return checkpoint(options_)(
        [this, begin, end](const at::Tensor& in) { return run(begin, end, in); })(x);
  }

  std::vector<int> runs_;
  remat::CheckpointOptions options_;
};

// Fails in backward while `fails` is set.
struct FailingNode : torch::autograd::Function<FailingNode> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*ctx*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*ctx*/,
                                                 torch::autograd::variable_list grads) {
    if (fails) throw std::runtime_error("node failed");
    return grads;
  }
  inline static bool fails = false;
};

// In backward, records the number of live bytes.
struct Probe : torch::autograd::Function<Probe> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*ctx*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*ctx*/,
                                                 torch::autograd::variable_list grads) {
    live_bytes = meter->current_bytes(default_device());
    return grads;
  }
  inline static const MemoryMeter* meter = nullptr;
  inline static int64_t live_bytes = 0;
};

// Saves both of its results.
struct SinCos : torch::autograd::Function<SinCos> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& x) {
    const at::Tensor sin = x.sin();
    const at::Tensor cos = x.cos();
    ctx->save_for_backward({sin, cos});
    return {sin, cos};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[1] - grads[1] * saved[0]};
  }
};

// A region inside a region. Every copy of their functions holds a token, so that live copies can be
// counted.
class TwoRegions {
 public:
  // Returns a scalar that depends on two regions and on the outer region's inputs a and b, which
  // the caller owns.
  at::Tensor loss() {
    const auto inner = [token = token_](const at::Tensor& x) { return x.sin().exp(); };
    const auto outer = [inner, replay_fails = replay_fails_](const at::Tensor& x,
                                                             const at::Tensor& y) {
      if (*replay_fails && remat::is_recomputing()) throw std::runtime_error("replay failed");
      return (FailingNode::apply(checkpoint()(inner)(x.cos())) * y).tanh();
    };
    return checkpoint()(outer)(a, b).sum();
  }

  // The outer function holds one token in its copy of the inner function; the inner region holds
  // another.
  long live_functions() const { return token_.use_count() - 1; }

  void fail_replays(bool fail) { *replay_fails_ = fail; }

  const at::Tensor a = layer_input();
  const at::Tensor b = layer_input();

 private:
  std::shared_ptr<int> token_ = std::make_shared<int>();
  std::shared_ptr<bool> replay_fails_ = std::make_shared<bool>(false);
};

// Returns the heap bytes of a call's output with its graph.
template <class Fn>
int64_t graph_heap_bytes(Fn fn) {
  constexpr int64_t kGraphs = 200;
  const at::Tensor x = torch::ones({1}).requires_grad_();
  std::vector<at::Tensor> outputs(kGraphs + 1);
  outputs[kGraphs] = fn(x);  // The first use allocates memory that stays.
  const int64_t before = heap_bytes();
  for (int64_t i = 0; i < kGraphs; ++i) outputs[i] = fn(x);
  return (heap_bytes() - before) / kGraphs;
}

TEST_CASE("64 nested layers peak at two outputs a level", "[backend][memory]") {
  // log2(64) = 6 levels. On the way to a layer each level keeps the input of the region that is
  // entered there: 6 outputs. Beside them, at most, the layer's input and output and the gradient
  // on either side of it are alive: 4. A level of a replay takes the place of the level that it
  // fills. 6 + 4 = 10 <= c * 6 with c = 2.
  constexpr int64_t kLevels = 6;
  constexpr int64_t kC = 2;
  const at::Tensor x = layer_input();
  NestedChain chain(64);
  MemoryMeter meter;
  at::Tensor loss = chain.run(x).sum();
  CHECK(meter.peak_bytes(default_device()) <= kC * kLevels * kLayerBytes);
  CHECK(meter.current_bytes(default_device()) ==
        kLayerBytes + kScalarBytes);  // the second half's input, and the loss

  meter.reset_peak();
  loss.backward();
  CHECK(meter.peak_bytes(default_device()) <= kC * kLevels * kLayerBytes);
  CHECK(meter.peak_bytes(default_device()) >=
        kLevels * kLayerBytes);  // The meter has seen the replays.
  CHECK(meter.current_bytes(default_device()) ==
        kLayerBytes + kScalarBytes);  // x.grad, and the loss
}

TEST_CASE("64 nested layers have the gradient of 64 plain ones, which keep 63 outputs",
          "[backend][memory]") {
  const at::Tensor x = layer_input();
  const at::Tensor twin = x.detach().clone().requires_grad_();
  const MemoryMeter meter;
  at::Tensor y = twin;
  for (int i = 0; i < 64; ++i) y = y.sin();
  CHECK(meter.current_bytes(default_device()) == 64 * kLayerBytes);  // 63 saved tensors, and y
  y.sum().backward();
  NestedChain(64).run(x).sum().backward();
  CHECK(same_bits(x.grad(), twin.grad()));
}

TEST_CASE(
    "A layer runs once more for itself and once for each region that has it in its first half",
    "[backend][memory]") {
  // A region of two halves keeps two slots, the halves' inputs. Its replay ends at the second slot:
  // its first half has run, its second half has not. So layer i runs 1 (forward) + 1 (its own
  // region) + 1 for each of the depth - 1 levels above in which it is in the left half.
  const std::vector<std::vector<int>> expected = {{2, 2}, {3, 2, 3, 2}, {4, 3, 3, 2, 4, 3, 3, 2}};
  for (const int depth : {1, 2, 3}) {
    CAPTURE(depth);
    NestedChain chain(1 << depth);
    chain.run(layer_input()).sum().backward();
    CHECK(chain.runs() == expected[depth - 1]);
  }
}

TEST_CASE("Without early stop a layer runs once more for each level", "[backend][memory]") {
  for (const int depth : {1, 2, 3}) {
    CAPTURE(depth);
    NestedChain chain(1 << depth, /*early_stop=*/false);
    chain.run(layer_input()).sum().backward();
    CHECK(chain.runs() == std::vector<int>(1 << depth, 1 + depth));
  }
}

TEST_CASE(
    "Regions that wrap one another run the layer twice, and once more for each op behind them",
    "[backend][memory]") {
  // If no op follows the inner region, the outer replay ends before the layer, at the region's
  // input. If an op that follows saves its result, each outer replay runs the layer too: 1 + depth.
  const bool op_behind = GENERATE(false, true);
  for (const int depth : {1, 2, 3}) {
    CAPTURE(op_behind, depth);
    int runs = 0;
    std::function<at::Tensor(const at::Tensor&)> fn = [&runs](const at::Tensor& x) {
      ++runs;
      return x.sin();
    };
    for (int level = 0; level < depth; ++level) {
      fn = [fn, op_behind, outermost = level == depth - 1](const at::Tensor& x) {
        const at::Tensor y = checkpoint()(fn)(x);
        return op_behind && !outermost ? y.sin() : y;
      };
    }
    fn(layer_input()).sum().backward();
    CHECK(runs == (op_behind ? 1 + depth : 2));
  }
}

// [cpu]: autograd's thread of a device may free a gradient where no meter counts. See MemoryMeter.
TEST_CASE("After a retained backward as much is live as after the forward",
          "[backend][memory][cpu]") {
  const at::Tensor x = layer_input();
  const MemoryMeter meter;
  at::Tensor loss;
  NestedChain chain(64);
  SECTION("64 nested layers") {
    loss = chain.run(x).sum();
  }
  SECTION("two regions") {
    const at::Tensor h = checkpoint()([](const at::Tensor& t) { return t.exp().sin().tanh(); })(x);
    loss = checkpoint()([](const at::Tensor& t) { return t.cos().exp(); })(h).sum();
  }
  const int64_t after_forward = meter.current_bytes(default_device());
  torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
  CHECK(meter.current_bytes(default_device()) == after_forward);
  loss.backward({}, /*retain_graph=*/true);
  CHECK(meter.current_bytes(default_device()) == after_forward + kLayerBytes);  // x.grad
}

TEST_CASE("100 retained backwards are flat", "[backend][memory]") {
  TwoRegions model;
  const MemoryMeter meter;
  const at::Tensor loss = model.loss();
  loss.backward({}, /*retain_graph=*/true);
  const int64_t bytes = meter.current_bytes(default_device());
  CHECK(bytes == kScalarBytes + 2 * kLayerBytes);  // the loss, a.grad and b.grad
  for (int i = 0; i < 100; ++i) {
    loss.backward({}, /*retain_graph=*/true);
    REQUIRE(meter.current_bytes(default_device()) == bytes);
    REQUIRE(model.live_functions() == 2);
  }
}

// [cpu]: autograd's thread of a device may free a gradient where no meter counts. See MemoryMeter.
TEST_CASE("Gradients of some inputs again and again are flat", "[backend][memory][cpu]") {
  TwoRegions model;
  const MemoryMeter meter;
  const at::Tensor loss = model.loss();
  for (int i = 0; i < 100; ++i) {
    for (const at::Tensor& input : {model.a, model.b}) {
      torch::autograd::grad({loss}, {input}, {}, /*retain_graph=*/true);
      REQUIRE(meter.current_bytes(default_device()) == kScalarBytes);
      REQUIRE(model.live_functions() == 2);
    }
  }
}

// [cpu]: autograd's thread of a device may free a gradient where no meter counts. See MemoryMeter.
TEST_CASE("A partial gradient that frees half of a graph leaves no replayed value behind",
          "[backend][memory][cpu]") {
  TwoRegions model;
  const MemoryMeter meter;
  at::Tensor loss = model.loss();
  torch::autograd::grad({loss}, {model.b});  // frees the product and tanh, not sin and exp
  CHECK(meter.current_bytes(default_device()) == kScalarBytes);
  CHECK(model.live_functions() == 2);
  CHECK_THROWS_WITH(torch::autograd::grad({loss}, {model.a}),
                    ContainsSubstring("backward through the graph a second time"));
  CHECK(meter.current_bytes(default_device()) == kScalarBytes);
  loss.reset();
  CHECK(meter.current_bytes(default_device()) == 0);
  CHECK(model.live_functions() == 0);
}

// [cpu]: autograd's thread of a device may free a gradient where no meter counts. See MemoryMeter.
TEST_CASE("Failing backwards are flat", "[backend][memory][cpu]") {
  TwoRegions model;
  const bool in_replay = GENERATE(false, true);
  CAPTURE(in_replay);
  const MemoryMeter meter;
  at::Tensor loss = model.loss();
  const auto fail = [&](bool on) {
    in_replay ? model.fail_replays(on) : void(FailingNode::fails = on);
  };
  for (int i = 0; i < 100; ++i) {
    fail(true);
    CHECK_THROWS_AS(torch::autograd::grad({loss}, {model.a, model.b}, {}, true),
                    std::runtime_error);
    fail(false);
    REQUIRE(meter.current_bytes(default_device()) == kScalarBytes);
    REQUIRE(model.live_functions() == 2);
  }
  CHECK_NOTHROW(torch::autograd::grad({loss}, {model.a, model.b}, {}, true));
  fail(true);
  CHECK_THROWS_AS(loss.backward(), std::runtime_error);
  fail(false);
  loss.reset();
  CHECK(meter.current_bytes(default_device()) == (model.b.grad().defined() ? kLayerBytes : 0));
  CHECK(model.live_functions() == 0);
}

TEST_CASE("10,000 steps are flat", "[backend][memory]") {
  TwoRegions model;
  const MemoryMeter meter;
  int64_t heap_after_1000 = 0;
  for (int step = 1; step <= 10'000; ++step) {
    model.loss().backward();
    if (step == 1000) heap_after_1000 = heap_bytes();
    if (meter.current_bytes(default_device()) != 2 * kLayerBytes || model.live_functions() != 0)
      FAIL("step " << step);
  }
  // 9,000 steps that each leaked one word would have leaked 72 kB.
  CHECK(heap_bytes() - heap_after_1000 < 64'000);
}

TEST_CASE("A graph that is dropped frees all that its regions kept, without a backward",
          "[backend][memory]") {
  TwoRegions model;
  const MemoryMeter meter;
  at::Tensor x = model.a * 2;  // an input that only the graph holds
  const auto token = std::make_shared<int>();
  at::Tensor y = checkpoint()([token](const at::Tensor& t) { return t.sin().exp(); })(x);
  x.reset();
  CHECK(meter.current_bytes(default_device()) == 2 * kLayerBytes);  // the input and y
  CHECK(token.use_count() == 2);
  y.reset();
  CHECK(meter.current_bytes(default_device()) == 0);
  CHECK(token.use_count() == 1);

  at::Tensor loss = model.loss();
  loss.reset();
  CHECK(model.live_functions() == 0);
}

TEST_CASE("Backward frees each replayed value with the node that used it, in a kept graph too",
          "[backend][memory]") {
  // One region: exp, the probe, 4 x sin. When backward reaches the probe, the 4 values of sin have
  // been used. Alive are exp's value, the gradient and the loss, but not the other 4.
  const bool keep_graph = GENERATE(false, true);
  const at::Tensor x = layer_input();
  const MemoryMeter meter;
  Probe::meter = &meter;
  const auto fn = [](const at::Tensor& t) { return Probe::apply(t.exp()).sin().sin().sin().sin(); };
  const at::Tensor loss = checkpoint()(fn)(x).sum();
  torch::autograd::grad({loss}, {x}, {}, keep_graph);
  CHECK(Probe::live_bytes <= 3 * kLayerBytes + kScalarBytes);
  CHECK(Probe::live_bytes >= 2 * kLayerBytes + kScalarBytes);
}

TEST_CASE("A tensor of a replay that the function keeps holds no values of the region",
          "[backend][memory]") {
  std::vector<at::Tensor> kept;  // stands for a list of router logits
  const auto fn = [&kept](const at::Tensor& t) {
    kept.push_back(t.exp().sin().exp().sin());
    return kept.back().exp();
  };
  const at::Tensor x = layer_input();
  const MemoryMeter meter;
  checkpoint({.name = "router"})(fn)(x).sum().backward();
  REQUIRE(kept.size() == 2);
  kept.erase(kept.begin());  // the forward's tensor
  // The gradient, and the kept tensor itself.
  CHECK(meter.current_bytes(default_device()) == 2 * kLayerBytes);
  CHECK_THAT(error_text([&] { kept[0].sum().backward(); }),
             ContainsSubstring(
                 "[replay] a region that is gone: expected backwards through the graph of the "
                 "forward, got one through a tensor that a function made when it ran again"));
}

// While a custom function saves its results, its context holds its tensors.
TEST_CASE("A replay that has all it needs when a custom function saves its results leaves nothing",
          "[backend][memory]") {
  const at::Tensor x = layer_input();
  for (const bool nested : {false, true}) {
    const auto fn = [nested](const at::Tensor& t) {
      const auto inner = [](const at::Tensor& in) { return SinCos::apply(in.exp())[0] + 1; };
      return nested ? checkpoint()(inner)(t.exp()) + 1 : inner(t);
    };
    x.mutable_grad() = at::Tensor();
    const MemoryMeter meter;
    checkpoint()(fn)(x).sum().backward();
    CHECK(meter.current_bytes(default_device()) == kLayerBytes);  // the gradient
  }
}

TEST_CASE("Backward lets go of each input as soon as its region is done", "[backend][memory]") {
  // Four regions of one layer each keep 4 inputs; the first is x. Backward replays one region at a
  // time: beside the inputs there are at most a replayed value and two gradients. If it replayed
  // all of them first, there would be 3 more.
  const at::Tensor x = layer_input();
  MemoryMeter meter;
  at::Tensor y = x;
  for (int i = 0; i < 4; ++i) y = checkpoint()([](const at::Tensor& t) { return t.exp(); })(y);
  at::Tensor loss = y.sum();
  y.reset();
  CHECK(meter.current_bytes(default_device()) == 3 * kLayerBytes + kScalarBytes);
  meter.reset_peak();
  loss.backward();
  CHECK(meter.peak_bytes(default_device()) <= (3 + 1 + 2) * kLayerBytes + kScalarBytes);
}

// [cpu]: counts the bytes of a Mersenne Twister.
TEST_CASE("A region keeps a generator's state only if it drew from it", "[backend][memory][cpu]") {
#ifdef __SANITIZE_ADDRESS__
  WARN("malloc's own count is not available under AddressSanitizer");
#else
  constexpr int64_t kTwisterBytes = 624 * 4;  // the words of a Mersenne Twister
  const auto quiet = [](const at::Tensor& x) { return x * x; };
  // Draws more than the 624 numbers after which the words change: until then regions share a copy.
  const auto random = [](const at::Tensor& x) { return x * x + at::rand({1000}).sum(); };
  const remat::CheckpointOptions options{.intercept = false};  // no log of ops
  const int64_t quiet_bytes =
      graph_heap_bytes(checkpoint(options)(quiet)) - graph_heap_bytes(quiet);
  const int64_t random_bytes =
      graph_heap_bytes(checkpoint(options)(random)) - graph_heap_bytes(random);
  CAPTURE(quiet_bytes, random_bytes);
  // Memory of the region itself, its argument, the streams of its forward, and two slots.
  CHECK(quiet_bytes < 3100);
  CHECK(random_bytes >= quiet_bytes + kTwisterBytes);
  CHECK(random_bytes < quiet_bytes + 2 * kTwisterBytes);
#endif
}

TEST_CASE("A region without gradients keeps nothing", "[backend][memory]") {
  const at::Tensor x = torch::rand({1024});  // does not require grad, so nothing is saved
  const auto token = std::make_shared<int>();
  const MemoryMeter meter;
  const at::Tensor y = checkpoint()([token](const at::Tensor& t) { return t.sin().exp(); })(x * 2);
  CHECK(meter.current_bytes(default_device()) == kLayerBytes);  // y
  CHECK(token.use_count() == 1);
}

}  // namespace
