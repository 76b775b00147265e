// SPDX-License-Identifier: BSD-3-Clause

// Reads, compares and restores the states of generators.
#include <remat/engine/generator_state.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <remat/engine/hash_mix.h>

namespace remat {
namespace {

using TwisterWords = decltype(at::mt19937_data_pod::state_);

/// Returns a copy of `words`. All states that this thread reads share one copy until the words
/// change, which happens after 624 draws.
std::shared_ptr<const TwisterWords> share(const TwisterWords& words) {
  thread_local std::weak_ptr<const TwisterWords> last;
  auto known = last.lock();
  if (known && *known == words) return known;
  // Not make_shared(), because then the weak pointer would hold the memory.
  known = std::shared_ptr<const TwisterWords>(new TwisterWords(words));
  last = known;
  return known;
}

std::string_view bytes_of(const c10::TensorImpl& state) {
  return {static_cast<const char*>(state.data()),
          static_cast<size_t>(state.numel()) * state.dtype().itemsize()};
}

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

c10::Device device_of(const OpCall& call) {
  std::optional<c10::Device> device;
  for (size_t i = 0; i < call.info().argument_count() && !device; ++i) {
    const c10::IValue& value = call.argument(i);
    for_each_tensor(value, [&](const at::Tensor& tensor) { device = tensor.device(); });
    if (!device && value.isDevice()) device = value.toDevice();
  }
  return device.value_or(c10::Device(c10::kCPU));
}

at::Generator generator_of(const OpCall& call) {
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    const c10::IValue& value = call.argument(i);
    if (value.isGenerator() && value.toGenerator().defined()) return value.toGenerator();
  }
  const c10::Device device = device_of(call);
  if (!device.is_cpu() && !device.is_cuda()) return {};
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

bool GeneratorState::Twister::operator==(const Twister& other) const {
  return seed == other.seed && left == other.left && next == other.next && seeded == other.seeded &&
         *words == *other.words && next_float == other.next_float &&
         next_double == other.next_double;
}

GeneratorState::Twister GeneratorState::read_twister(at::CPUGeneratorImpl& cpu) {
  const at::mt19937 engine = cpu.engine();
  const at::mt19937_data_pod data = engine.data();
  return {.seed = data.seed_,
          .left = data.left_,
          .seeded = data.seeded_,
          .next = data.next_,
          .words = share(data.state_),
          .next_float = cpu.next_float_normal_sample(),
          .next_double = cpu.next_double_normal_sample()};
}

GeneratorState::Value GeneratorState::value_of(c10::GeneratorImpl& generator) {
  if (auto* const cpu = dynamic_cast<at::CPUGeneratorImpl*>(&generator)) return read_twister(*cpu);
  if (generator.device().is_cuda()) return Philox(generator.current_seed(), generator.get_offset());
  return generator.get_state();
}

GeneratorState GeneratorState::read(const at::Generator& generator) {
  TORCH_CHECK_VALUE(generator.defined(),
                    "[GeneratorState] generator: expected a generator, got an undefined one.");
  c10::GeneratorImpl& impl = *generator.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  return {generator, value_of(impl)};
}

bool GeneratorState::is_current() const {
  c10::GeneratorImpl& impl = *generator_.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  const Value now = value_of(impl);
  if (const auto* const opaque = std::get_if<Opaque>(&value_))
    return bytes_of(**opaque) == bytes_of(*std::get<Opaque>(now));
  return now == value_;
}

void GeneratorState::restore() const {
  c10::GeneratorImpl& impl = *generator_.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  if (const auto* const philox = std::get_if<Philox>(&value_)) {
    impl.set_current_seed(philox->first);
    impl.set_offset(philox->second);
    return;
  }
  if (const auto* const opaque = std::get_if<Opaque>(&value_)) return impl.set_state(**opaque);
  const auto& twister = std::get<Twister>(value_);
  auto& cpu = static_cast<at::CPUGeneratorImpl&>(impl);
  at::mt19937_data_pod data{};
  data.seed_ = twister.seed;
  data.left_ = twister.left;
  data.seeded_ = twister.seeded;
  data.next_ = twister.next;
  data.state_ = *twister.words;
  at::mt19937 engine;
  engine.set_data(data);
  cpu.set_engine(engine);
  cpu.set_next_float_normal_sample(twister.next_float);
  cpu.set_next_double_normal_sample(twister.next_double);
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

KeptGenerators::KeptGenerators(const std::vector<GeneratorState>& states) {
  for (const GeneratorState& state : states) add(state.generator());
  for (const GeneratorState& state : states) state.restore();
}

KeptGenerators::~KeptGenerators() {
  for (const GeneratorState& state : present_) state.restore();
}

uint64_t draw_position(const OpCall& call) {
  const at::Generator generator = generator_of(call);
  return generator.defined() ? position_of(generator) : 0;
}

}  // namespace remat
