// SPDX-License-Identifier: BSD-3-Clause

// Running programs and their backward, plain and checkpointed.
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "fuzz/program.h"
#include "remat/remat.h"

namespace remat::fuzz {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t kSize = 4;
constexpr size_t kWeights = 3;
constexpr size_t kErrorWords = 60;

struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& grads) {
    return {grads[0] * 2 * context->get_saved_variables()[0]};
  }
};

/// How many records the tape of each region has that can be cut.
using TapeSizes = std::map<const Step*, size_t>;

Cuts cuts_of(const RegionChoices& choices, size_t records) {
  std::set<size_t> positions;
  for (const double cut : choices.cuts) {
    const auto position = static_cast<size_t>(cut * static_cast<double>(records));
    if (position > 0) positions.insert(position);
  }
  Cuts cuts{.positions = {positions.begin(), positions.end()}};
  for (size_t size = choices.group; size > 0 && size <= cuts.segment_count(); size *= 2) {
    for (size_t i = 0; i + size <= cuts.segment_count(); i += size)
      cuts.groups.push_back({i, i + size});
  }
  return cuts;
}

bool has_cuts(const Block& block) {
  return std::any_of(block.steps.begin(), block.steps.end(), [](const Step& step) {
    return !step.region.cuts.empty() ||
           std::any_of(step.block.begin(), step.block.end(), &has_cuts);
  });
}

/// Outlives every graph that it makes: regions refer to it and to the program.
class Machine {
 public:
  /// `sizes`: filled in Mode::kRehearsal, else what a rehearsal has filled.
  Machine(Mode mode, uint64_t seed, TapeSizes& sizes) : mode_(mode), seed_(seed), sizes_(sizes) {
    at::manual_seed(seed);
    for (size_t i = 0; i < kWeights; ++i)
      weights_.push_back((at::randn({kSize, kSize}) * 0.5).requires_grad_(true));
    for (size_t i = 0; i < kBuffers; ++i) buffers_.push_back(at::rand({kSize, kSize}));
  }

  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// LibTorch frees no cycle, and an in-place op makes one when an unused branch of the program
  /// saved the tensor that it writes.
  ~Machine() {
    for (const WeakTensor& weak : made_) {
      if (const auto tensor = weak.lock()) tensor->set_autograd_meta(nullptr);
    }
  }

  Tensors& weights() { return weights_; }
  const Tensors& buffers() const { return buffers_; }

  Tensors call(const Block& block, Tensors values) {
    for (const Step& step : block.steps) apply(step, values);
    Tensors results;
    for (const size_t i : block.results) results.push_back(values[i]);
    return results;
  }

 private:
  void apply(const Step& step, Tensors& values) {
    if (step.op == Op::kSame) {
      values.push_back(values[step.a]);
    } else if (!step.block.empty()) {
      for (Tensor& result : step.op == Op::kCall ? named_call(step, values) : region(step, values))
        add(std::move(result), values);
    } else if (!apply_in_place(step, values)) {
      add(compute(step, values[step.a], values[step.b]), values);
    }
  }

  void add(Tensor value, Tensors& values) {
    made_.emplace_back(value.getIntrusivePtr());
    values.push_back(std::move(value));
  }

  Tensors region(const Step& step, const Tensors& values) {
    const Block& block = step.block[0];
    if (mode_ == Mode::kPlain) return call(block, values);
    const size_t size = mode_ == Mode::kRehearsal ? 0 : sizes_[&step];
    const Cuts cuts = cuts_of(step.region, size);
    // A name that no other program has: whether a tape can be written is remembered by name.
    const CheckpointOptions options{
        .name = c10::str("region ", seed_, ".", number_of(step)),
        .determinism = step.region.compares ? Determinism::kMetadata : Determinism::kNone,
        .early_stop = step.region.early_stop,
        .replay = engine_of(step, cuts),
        .cuts = cuts,
        .policy = policy_of(step.region),
        .offload_store = store_};
    const Tensors results = checkpoint(options)(
        [this, &block](const Tensors& arguments) { return call(block, arguments); })(values);
    if (mode_ == Mode::kRehearsal) note_size(step, "region '" + options.name + "'");
    return results;
  }

  ReplayEngine engine_of(const Step& step, const Cuts& cuts) const {
    if (!cuts.empty()) return ReplayEngine::kTape;
    const bool rehearses = mode_ == Mode::kRehearsal && !step.region.cuts.empty();
    return step.region.tape || rehearses ? ReplayEngine::kAuto : ReplayEngine::kFunction;
  }

  size_t number_of(const Step& step) {
    return numbers_.emplace(&step, numbers_.size()).first->second;
  }

  void note_size(const Step& step, const std::string& region) {
    if (step.region.cuts.empty()) return;
    for (const RegionTape& tape : region_tapes()) {
      if (tape.region() == region) sizes_[&step] = tape.tape().records().size();
    }
  }

  static std::shared_ptr<const RegionPolicy> policy_of(const RegionChoices& choices) {
    if (choices.saved_ops.empty()) return nullptr;
    PolicyTable table;
    for (const std::string& op : choices.saved_ops) table.op(op, Policy::kSave);
    return make_policy(std::move(table));
  }

  /// Outside of regions, and so in plain mode, a named call is a call.
  Tensors named_call(const Step& step, const Tensors& values) {
    const CallChoices& choices = step.call;
    const auto name = [&](auto fn) {
      return native_op(std::move(fn), choices.name, choices.policy, choices.keep);
    };
    const auto fn = [this, &step, captured = pick(values, choices.captures)](Tensors inner) {
      const c10::AutoGradMode grad(at::GradMode::is_enabled() && !step.call.no_grad);
      inner.insert(inner.end(), captured.begin(), captured.end());
      return call(step.block[0], std::move(inner));
    };
    const Tensors arguments = pick(values, choices.arguments);
    const size_t results = step.block[0].results.size();
    if (results == 0) {
      name([fn](const Tensors& inner) { fn(inner); })(arguments);
      return {};
    }
    if (results == 1 && arguments.size() == 1)
      return {name([fn](const Tensor& inner) { return fn({inner})[0]; })(arguments[0])};
    return name(fn)(arguments);
  }

  static Tensors pick(const Tensors& values, const std::vector<size_t>& numbers) {
    Tensors picked;
    for (const size_t i : numbers) picked.push_back(values[i]);
    return picked;
  }

  bool apply_in_place(const Step& step, Tensors& values) {
    Tensor& a = values[step.a];
    switch (step.op) {
      case Op::kScaleInPlace:
        a.mul_(0.9);
        return true;
      case Op::kAddInPlace:
        a.add_(values[step.b]);
        return true;
      case Op::kSelectInPlace:
        a.select(0, 1).mul_(1.1);
        return true;
      case Op::kWriteBuffer:
        buffers_[step.b % kBuffers].mul_(0.5).add_(a.detach().tanh());
        return true;
      default:
        return false;
    }
  }

  Tensor compute(const Step& step, const Tensor& a, const Tensor& b) {
    switch (step.op) {
      case Op::kSin:
        return a.sin();
      case Op::kTanh:
        return a.tanh();
      case Op::kRelu:
        return a.relu();
      case Op::kSoftmax:
        return a.softmax(1);
      case Op::kLayerNorm:
        return at::layer_norm(a, {kSize});
      case Op::kMul:
        return a * b.tanh();
      case Op::kAdd:
        return a + b;
      case Op::kMatmul:
        return at::matmul(a.tanh(), b);
      case Op::kWeight:
        return at::matmul(a, weights_[step.b % kWeights]);
      case Op::kDropout:
        return at::dropout(a, 0.4, true);
      case Op::kRandom:
        return a * at::rand_like(a);
      case Op::kTranspose:
        return a.t();
      case Op::kReshape:
        return a.reshape({2, 2 * kSize}).reshape({kSize, kSize});
      case Op::kCat:
        return at::cat({a.narrow(0, 0, 2), b.narrow(0, 2, 2)}, 0);
      case Op::kWindow:
        return at::cat({a, b}, 0).narrow(0, 2, kSize);
      case Op::kIndex:
        return a.index_select(0, a.detach().sum(1).argsort());
      case Op::kDetach:
        return a.detach();
      case Op::kClone:
        return a.clone();
      case Op::kNoGrad:
        return no_grad_mean(a) * a;
      case Op::kCustom:
        return Square::apply(a.tanh());
      case Op::kInnerGrad:
        return inner_grad(a);
      case Op::kInnerBackward:
        return inner_backward(a, weights_[step.b % kWeights]);
      case Op::kReadBuffer:
        return a * (buffers_[step.b % kBuffers] + 0.5);
      default:
        TORCH_INTERNAL_ASSERT(false, "no such op");
    }
  }

  static Tensor no_grad_mean(const Tensor& a) {
    at::NoGradGuard no_grad;
    return a.mean();
  }

  static Tensor inner_grad(const Tensor& a) {
    const Tensor x = a.requires_grad() ? a : a.detach().requires_grad_(true);
    const Tensor y = (x.sin() * x).sum();
    return torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  }

  static Tensor inner_backward(const Tensor& a, const Tensor& weight) {
    const Tensor x = a.detach().requires_grad_(true);
    (x * weight).sin().sum().backward();
    return a + x.grad();
  }

  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  Mode mode_;
  uint64_t seed_;
  TapeSizes& sizes_;
  std::map<const Step*, size_t> numbers_;
  Tensors weights_;
  Tensors buffers_;
  const std::shared_ptr<OffloadStore> store_ = host_memory_store();
  std::vector<WeakTensor> made_;
};

Tensors leaves(const Tensors& weights, const Tensors& inputs) {
  Tensors all = weights;
  all.insert(all.end(), inputs.begin(), inputs.end());
  return all;
}

Tensor loss(const Tensors& outputs) {
  Tensor sum = at::zeros({});
  for (const Tensor& output : outputs) sum = sum + (output * output).sum();
  return sum;
}

void use_graph(Use use, const Tensor& loss, const Tensors& wanted, Tensors& results) {
  switch (use) {
    case Use::kRetainGraph:
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      return;
    case Use::kPartialGrads: {
      for (const Tensor& leaf : {wanted.front(), wanted.back()}) {
        const Tensors grads =
            torch::autograd::grad({loss}, {leaf}, {}, true, false, /*allow_unused=*/true);
        results.push_back(grads[0]);
      }
      return;
    }
    case Use::kDoubleBackward: {
      const Tensors grads =
          torch::autograd::grad({loss}, wanted, {}, true, /*create_graph=*/true, true);
      Tensor penalty = loss * 0;
      for (const Tensor& grad : grads) {
        if (grad.defined()) penalty = penalty + grad.square().sum();
      }
      penalty.backward();
      return;
    }
    default:
      loss.backward();
  }
}

void run_checked(const Program& program, Machine& machine, Use use, Tensors& results) {
  Tensors inputs;
  for (size_t i = 0; i < program.body.inputs; ++i)
    inputs.push_back(at::randn({kSize, kSize}).requires_grad_(i != 1));
  const Tensors outputs = machine.call(program.body, inputs);
  const Tensor first = loss(outputs);
  for (const Tensor& output : outputs) results.push_back(output.detach().clone());
  const Tensors wanted = leaves(machine.weights(), {inputs.front()});
  if (!first.requires_grad()) return;
  if (use == Use::kTwoInFlight) loss(machine.call(program.body, inputs)).backward();
  use_graph(use, first, wanted, results);
  for (const Tensor& leaf : wanted)
    results.push_back(leaf.grad().defined() ? leaf.grad().clone() : Tensor());
}

/// What named calls refuse by design: a backward through a SAVE call inside the function, and a
/// .grad that SAVE calls and other code of the region add to.
bool is_refusal(const std::string& error) {
  constexpr std::array kTexts = {
      "inside the region's function that passes no SAVE call",
      "expected what a tape can replay, got a backward in the function",  // of a cut region
      "op aten::add_.Tensor: expected tensors that the function makes or that SAVE calls return",
      "op aten::add_.Tensor: expected to write strided arguments of the call or tensors from "
      "outside"};
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](const char* text) { return error.find(text) != error.npos; });
}

}  // namespace

namespace {

/// What can be cut, found by a forward.
TapeSizes rehearse(const Program& program, uint64_t seed) {
  TapeSizes sizes;
  Machine machine(Mode::kRehearsal, seed, sizes);
  Tensors inputs;
  for (size_t i = 0; i < program.body.inputs; ++i)
    inputs.push_back(at::randn({kSize, kSize}).requires_grad_(i != 1));
  try {
    machine.call(program.body, inputs);
  } catch (const c10::Error&) {  // as the run itself will
  }
  return sizes;
}

}  // namespace

Outcome run(const Program& program, Mode mode, Use use, uint64_t seed) {
  TapeSizes sizes;
  if (mode == Mode::kCheckpointed && has_cuts(program.body)) sizes = rehearse(program, seed);
  Machine machine(mode, seed, sizes);
  Outcome outcome;
  try {
    run_checked(program, machine, use, outcome.tensors);
  } catch (const c10::Error& error) {
    outcome.message = error.what_without_backtrace();
    outcome.refused = is_refusal(outcome.message);
    outcome.error = outcome.message.substr(0, kErrorWords);
  }
  for (const Tensor& buffer : machine.buffers()) outcome.tensors.push_back(buffer);
  outcome.tensors.push_back(at::rand({2}));  // the stream goes on as if nothing had happened
  return outcome;
}

}  // namespace remat::fuzz
