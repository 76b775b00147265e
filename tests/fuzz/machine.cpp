// SPDX-License-Identifier: BSD-3-Clause

// Runs random programs.
#include "fuzz/machine.h"

#include <torch/torch.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "fuzz/device.h"
#include "fuzz/helpers.h"
#include "fuzz/printer.h"

namespace remat::fuzz {
namespace {

using at::Tensor;

Tensors pick(const Tensors& values, const std::vector<size_t>& numbers) {
  Tensors picked;
  for (const size_t i : numbers) picked.push_back(values[i]);
  return picked;
}

/// Returns `values` without those that the block does not use.
Tensors captured_by(const Block& block, const Tensors& values) {
  Tensors captured(values.size());
  for (const size_t i : used_inputs(block)) captured[i] = values[i];
  return captured;
}

std::shared_ptr<const RegionPolicy> policy_of(const RegionChoices& choices) {
  if (choices.rules.empty()) return nullptr;
  PolicyTable table;
  for (const OpRule& rule : choices.rules) {
    if (rule.is_preset) {
      table.add(preset(rule.op));
    } else {
      table.op(rule.op, rule.policy);
    }
  }
  return make_policy(std::move(table));
}

size_t next_run() {
  static size_t last = 0;
  return ++last;
}

}  // namespace

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

size_t records_of(const TapeSizes& sizes, const Step& step) {
  const auto found = sizes.find(&step);
  return found == sizes.end() ? 0 : found->second;
}

ReplayEngine engine_of(const RegionChoices& choices, const Cuts& cuts) {
  if (!cuts.empty()) return ReplayEngine::kTape;
  return choices.tape ? ReplayEngine::kAuto : ReplayEngine::kFunction;
}

Machine::Machine(const Program& program, Mode mode, TapeSizes& sizes)
    : program_(program),
      run_(next_run()),
      mode_(mode),
      sizes_(sizes),
      store_(moves_storages(program) ? offload_engine({.min_bytes = 0}) : host_memory_store()) {
  at::manual_seed(program.seed);
  for (size_t i = 0; i < kWeights; ++i)
    weights_.push_back((at::randn({kSize, kSize}) * 0.5).to(place(i)).requires_grad_(true));
  for (size_t i = 0; i < kBuffers; ++i)
    buffers_.push_back(at::rand({kSize, kSize}).to(main_device()));
  buffers_.push_back(at::rand({kParts, kSize, kSize}).to(place(2)));
}

Machine::~Machine() {
  for (const WeakTensor& weak : made_) {
    if (const auto tensor = weak.lock()) tensor->set_autograd_meta(nullptr);
  }
}

Tensors Machine::make_inputs() {
  Tensors inputs;
  for (size_t i = 0; i < program_.body.inputs; ++i)
    add(at::randn({kSize, kSize}).to(place(i)).requires_grad_(i != 1), inputs);
  return inputs;
}

at::Device Machine::place(size_t i) const {
  if (i != 2 || program_.placement == Placement::kOneDevice) return main_device();
  return program_.placement == Placement::kWithHost ? at::Device(at::kCPU) : second_device();
}

Tensors Machine::call(const Block& block, Tensors values) {
  for (const Step& step : block.steps) apply(step, values);
  return pick(values, block.results);
}

void Machine::apply(const Step& step, Tensors& values) {
  if (step.op == Op::kSame) {
    values.push_back(values[step.a]);
  } else if (!step.block.empty()) {
    for (Tensor& result : apply_block(step, values)) add(std::move(result), values);
  } else {
    const OpInfo& op = info(step.op);
    Tensor r;
    Tensor s;
    const Tensor& buffer = buffers_[step.b % kBuffers];
    const Tensor& bank = buffers_[kBuffers];
    const at::Device home = (op.effect == Effect::kWritesBuffer ? buffer
                             : op.effect == Effect::kWritesBank ? bank
                                                                : values[step.a])
                                .device();
    // Operands that the op does not name are not copied. A copy of a buffer would read it
    // unplanned: if it is freed or written later, a replay would fail where plain code runs.
    const auto there = [&](std::string_view name, const Tensor& t) {
      return t.device() == home || !has_word(op.cpp, name) ? t : t.to(home);
    };
    op.run({.a = there("a", values[step.a]),
            .b = there("b", values[step.b]),
            .w = there("w", weights_[step.b % kWeights]),
            .buffer = there("buffer", buffer),
            .bank = there("bank", bank),
            .part = static_cast<int64_t>(step.b) % kParts},
           r, s);
    if (op.results > 0) add(std::move(r), values);
    if (op.results > 1) add(std::move(s), values);
  }
}

Tensors Machine::apply_block(const Step& step, const Tensors& values) {
  if (step.op == Op::kRegion) return region(step, values);
  return step.op == Op::kCall ? named_call(step, values) : scope(step, values);
}

void Machine::add(Tensor value, Tensors& values) {
  {
    const std::lock_guard lock(mutex_);
    made_.emplace_back(value.getIntrusivePtr());
  }
  values.push_back(std::move(value));
}

Tensors Machine::region(const Step& step, const Tensors& values) {
  const Block& block = step.block[0];
  if (mode_ == Mode::kPlain) return received(call(block, values));
  const auto fn = [this, &step, captured = captured_by(block, values)](const Tensors& arguments) {
    Tensors inner = captured;
    for (size_t i = 0; i < arguments.size(); ++i) inner[step.region.arguments[i]] = arguments[i];
    return call(step.block[0], std::move(inner));
  };
  const CheckpointOptions options = options_of(step);
  Tensors results = checkpoint(options)(fn)(pick(values, step.region.arguments));
  if (mode_ == Mode::kRehearsal) note_size(step, "region '" + options.name + "'");
  return received(std::move(results));
}

/// Takes the results of a region, whose function may have made them on a stream without waiting for
/// the stream.
Tensors Machine::received(Tensors results) {
  return on_cuda() ? on_this_stream(std::move(results)) : results;
}

CheckpointOptions Machine::options_of(const Step& step) {
  const RegionChoices& choices = step.region;
  const bool rehearses = mode_ == Mode::kRehearsal;
  const Cuts cuts = cuts_of(choices, rehearses ? 0 : records_of(sizes_, step));
  CheckpointOptions options{
      // A name that no other run has, because remat remembers by name if a tape can be written.
      .name = c10::str("region ", program_.seed, ".", number_of(step), ".", run_),
      .preserve_rng = mode_ != Mode::kBroken,
      .determinism = choices.compares ? Determinism::kMetadata : Determinism::kNone,
      .early_stop = choices.early_stop,
      .replay = engine_of(choices, cuts),
      .cuts = cuts,
      .policy = policy_of(choices),
      .offload_store = store_};
  if (choices.hooks) options.saved_tensors_hooks = copying_hooks();
  if (rehearses && !choices.cuts.empty()) options.replay = ReplayEngine::kAuto;
  return options;
}

size_t Machine::number_of(const Step& step) {
  const std::lock_guard lock(mutex_);
  return numbers_.emplace(&step, numbers_.size()).first->second;
}

void Machine::note_size(const Step& step, const std::string& name) {
  if (step.region.cuts.empty()) return;
  for (const RegionTape& tape : region_tapes()) {
    if (tape.region() == name) sizes_[&step] = tape.size();
  }
}

Tensors Machine::scope(const Step& step, const Tensors& values) {
  const auto run = [&] { return call(step.block[0], pick(values, block_inputs(step))); };
  switch (step.scope.kind) {
    case ScopeChoices::Kind::kAutocast: {
      const Autocast scope(main_device().type());
      return run();
    }
    case ScopeChoices::Kind::kDevice: {
      const c10::DeviceGuard scope(second_device());
      return run();
    }
    case ScopeChoices::Kind::kStream:
    case ScopeChoices::Kind::kSecondStream:
    case ScopeChoices::Kind::kLateStream: {
      const at::Device device =
          step.scope.kind == ScopeChoices::Kind::kSecondStream ? second_device() : main_device();
      const bool is_late = step.scope.kind == ScopeChoices::Kind::kLateStream;
      Tensors results;
      {
        const SideStream scope(device, pick(values, block_inputs(step)), is_late);
        results = run();
      }
      return is_late ? results : on_this_stream(std::move(results));
    }
    case ScopeChoices::Kind::kHooks: {
      const SavedTensorsHooksGuard scope(copying_hooks());
      return run();
    }
    case ScopeChoices::Kind::kNames: {
      const NameScope scope(step.scope.name);
      return run();
    }
    default:
      return run();
  }
}

/// Outside regions, and so in plain mode, a named call is a plain call.
Tensors Machine::named_call(const Step& step, const Tensors& values) {
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

}  // namespace remat::fuzz
