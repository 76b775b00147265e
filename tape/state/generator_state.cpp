// SPDX-License-Identifier: BSD-3-Clause

// Reads, compares and restores the states of generators.
#include <remat/tape/generator_state.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "hash_mix.h"

namespace remat {

class GeneratorState::Value {
 public:
  Value() = default;
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  virtual ~Value() = default;
  virtual bool is_current(c10::GeneratorImpl& generator) const = 0;
  virtual void restore(c10::GeneratorImpl& generator) const = 0;
};

namespace {

using TwisterWords = decltype(at::mt19937_data_pod::state_);

/// Returns a copy of the words that all states read by this thread share until the words change,
/// which happens after 624 draws.
std::shared_ptr<const TwisterWords> share(const TwisterWords& words) {
  thread_local std::weak_ptr<const TwisterWords> last;
  auto known = last.lock();
  if (known && *known == words) return known;
  // Not make_shared(): the weak pointer would hold the memory.
  known = std::shared_ptr<const TwisterWords>(new TwisterWords(words));
  last = known;
  return known;
}

}  // namespace

// The Mersenne Twister's words, 2.5 kB, its place in them and the two cached normal samples.
class GeneratorState::CpuValue final : public Value {
 public:
  explicit CpuValue(at::CPUGeneratorImpl& cpu) : CpuValue(cpu, cpu.engine().data()) {}

  CpuValue(at::CPUGeneratorImpl& cpu, const at::mt19937_data_pod& engine)
      : seed_(engine.seed_),
        left_(engine.left_),
        seeded_(engine.seeded_),
        next_(engine.next_),
        words_(share(engine.state_)),
        next_float_(cpu.next_float_normal_sample()),
        next_double_(cpu.next_double_normal_sample()) {}

  bool is_current(c10::GeneratorImpl& generator) const override {
    auto& cpu = static_cast<at::CPUGeneratorImpl&>(generator);
    const at::mt19937 engine = cpu.engine();
    const at::mt19937_data_pod now = engine.data();
    return now.seed_ == seed_ && now.left_ == left_ && now.next_ == next_ &&
           now.seeded_ == seeded_ && now.state_ == *words_ &&
           cpu.next_float_normal_sample() == next_float_ &&
           cpu.next_double_normal_sample() == next_double_;
  }

  void restore(c10::GeneratorImpl& generator) const override {
    auto& cpu = static_cast<at::CPUGeneratorImpl&>(generator);
    at::mt19937_data_pod data{};
    data.seed_ = seed_;
    data.left_ = left_;
    data.seeded_ = seeded_;
    data.next_ = next_;
    data.state_ = *words_;
    at::mt19937 engine;
    engine.set_data(data);
    cpu.set_engine(engine);
    cpu.set_next_float_normal_sample(next_float_);
    cpu.set_next_double_normal_sample(next_double_);
  }

 private:
  uint64_t seed_;
  int left_;
  bool seeded_;
  uint32_t next_;
  std::shared_ptr<const TwisterWords> words_;
  std::optional<float> next_float_;
  std::optional<double> next_double_;
};

// CUDA's counter-based generator: seed and offset are its whole state, and reading them allocates
// nothing.
class GeneratorState::PhiloxValue final : public Value {
 public:
  explicit PhiloxValue(const c10::GeneratorImpl& generator)
      : seed_(generator.current_seed()), offset_(generator.get_offset()) {}

  bool is_current(c10::GeneratorImpl& generator) const override {
    return generator.current_seed() == seed_ && generator.get_offset() == offset_;
  }

  void restore(c10::GeneratorImpl& generator) const override {
    generator.set_current_seed(seed_);
    generator.set_offset(offset_);
  }

 private:
  uint64_t seed_;
  uint64_t offset_;
};

// Any other generator, by its state tensor, which is on the CPU.
class GeneratorState::OpaqueValue final : public Value {
 public:
  explicit OpaqueValue(const c10::GeneratorImpl& generator) : state_(generator.get_state()) {}

  bool is_current(c10::GeneratorImpl& generator) const override {
    const c10::intrusive_ptr<c10::TensorImpl> now = generator.get_state();
    const auto bytes = [](const c10::TensorImpl& t) {
      return static_cast<size_t>(t.numel()) * t.dtype().itemsize();
    };
    return bytes(*now) == bytes(*state_) &&
           std::memcmp(now->data(), state_->data(), bytes(*now)) == 0;
  }

  void restore(c10::GeneratorImpl& generator) const override { generator.set_state(*state_); }

 private:
  c10::intrusive_ptr<c10::TensorImpl> state_;
};

GeneratorState::GeneratorState(at::Generator generator, std::unique_ptr<Value> value)
    : generator_(std::move(generator)), value_(std::move(value)) {}
GeneratorState::GeneratorState(GeneratorState&&) noexcept = default;
GeneratorState& GeneratorState::operator=(GeneratorState&&) noexcept = default;
GeneratorState::~GeneratorState() = default;

GeneratorState GeneratorState::read(const at::Generator& generator) {
  TORCH_CHECK_VALUE(generator.defined(),
                    "[GeneratorState] generator: expected a generator, got an undefined one.");
  c10::GeneratorImpl& impl = *generator.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  if (auto* cpu = dynamic_cast<at::CPUGeneratorImpl*>(&impl))
    return {generator, std::make_unique<CpuValue>(*cpu)};
  if (generator.device().is_cuda()) return {generator, std::make_unique<PhiloxValue>(impl)};
  return {generator, std::make_unique<OpaqueValue>(impl)};
}

bool GeneratorState::is_current() const {
  c10::GeneratorImpl& impl = *generator_.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  return value_->is_current(impl);
}

void GeneratorState::restore() const {
  c10::GeneratorImpl& impl = *generator_.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  value_->restore(impl);
}

GeneratorMark::GeneratorMark(const at::Generator& generator) : generator_(generator) {
  c10::GeneratorImpl& impl = *generator.unsafeGetGeneratorImpl();
  if (!dynamic_cast<at::CPUGeneratorImpl*>(&impl)) {
    state_ = GeneratorState::read(generator);
    return;
  }
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  words_ = words_of(impl);
}

bool GeneratorMark::has_moved() const {
  if (state_) return !state_->is_current();
  c10::GeneratorImpl& impl = *generator_.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  return words_of(impl) != words_;
}

uint64_t position_of(const at::Generator& generator) {
  c10::GeneratorImpl& impl = *generator.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  if (generator.device().is_cuda())
    return hash_mix(hash_mix(1, impl.current_seed()), impl.get_offset());
  if (!generator.device().is_cpu()) return 0;
  uint64_t hash = 1;
  for (const uint64_t word : GeneratorMark::words_of(impl)) hash = hash_mix(hash, word);
  return hash;
}

GeneratorMark::Words GeneratorMark::words_of(c10::GeneratorImpl& generator) {
  auto& cpu = static_cast<at::CPUGeneratorImpl&>(generator);
  const at::mt19937 engine = cpu.engine();
  const at::mt19937_data_pod data = engine.data();
  Words words{data.seed_, static_cast<uint64_t>(data.left_), static_cast<uint64_t>(data.next_),
              data.seeded_ ? 1U : 0U};
  const auto cached_float = cpu.next_float_normal_sample();
  const auto cached_double = cpu.next_double_normal_sample();
  words[4] = (cached_float ? 1U : 0U) + (cached_double ? 2U : 0U);
  if (cached_float) std::memcpy(&words[5], &*cached_float, sizeof(float));
  if (cached_double) std::memcpy(&words[6], &*cached_double, sizeof(double));
  std::memcpy(&words[7], data.state_.data(), 5 * sizeof(uint64_t));
  return words;
}

namespace {

/// Calls f(generator) for the default generators of the CPU and of each CUDA device in use, then
/// for `named`.
template <class F>
void for_each_generator(const std::vector<at::Generator>& named, F&& f) {
  f(at::detail::getDefaultCPUGenerator());
  const auto& cuda = at::detail::getCUDAHooks();
  if (cuda.hasCUDA()) {
    for (const auto i : c10::irange(cuda.deviceCount())) {
      const auto index = static_cast<c10::DeviceIndex>(i);
      if (cuda.hasPrimaryContext(index)) f(cuda.getDefaultGenerator(index));
    }
  }
  for (const at::Generator& generator : named) f(generator);
}

}  // namespace

std::vector<GeneratorState> read_generators(const std::vector<at::Generator>& named) {
  std::vector<GeneratorState> states;
  states.reserve(1 + named.size());
  for_each_generator(named, [&](const at::Generator& generator) {
    states.push_back(GeneratorState::read(generator));
  });
  return states;
}

std::vector<GeneratorMark> mark_generators(const std::vector<at::Generator>& named) {
  std::vector<GeneratorMark> marks;
  marks.reserve(1 + named.size());
  for_each_generator(named, [&](const at::Generator& generator) { marks.emplace_back(generator); });
  return marks;
}

void drop_current(std::vector<GeneratorState>& states) {
  std::erase_if(states, [](const GeneratorState& state) { return state.is_current(); });
}

ReplayGenerators::ReplayGenerators(const std::vector<GeneratorState>& states) {
  for (const GeneratorState& state : states) kept_.add(state.generator());
  for (const GeneratorState& state : states) state.restore();
}

KeptGenerators::~KeptGenerators() {
  for (const GeneratorState& state : present_) state.restore();
}

}  // namespace remat
