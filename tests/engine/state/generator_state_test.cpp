// SPDX-License-Identifier: BSD-3-Clause

// Generators are read, compared and restored; threads that replay with one generator take turns.
#include <remat/engine/generator_state.h>

#include "support/catch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include <remat/engine/turn.h>
#include "support/default_device.h"
#include "support/same_bits.h"

namespace {

using remat::GeneratorState;

at::Generator default_generator() {
  return at::globalContext().defaultGenerator(remat::default_device());
}

at::Generator make(uint64_t seed) {
  at::Generator generator = default_generator().clone();
  generator.set_current_seed(seed);
  return generator;
}

TEST_CASE("A restored generator draws the same numbers", "[tape][generator_state]") {
  const at::Generator generator = GENERATE(make(5), default_generator());
  at::rand({10}, generator);  // somewhere inside a block of the twister
  const GeneratorState state = GeneratorState::read(generator);
  const at::Tensor first = at::rand({700}, generator);  // past the end of that block: 624 words
  state.restore();
  CHECK(same_bits(at::rand({700}, generator), first));
  CHECK(state.generator() == generator);
}

TEST_CASE("A state is current until something is drawn or seeded, and again when restored",
          "[tape][generator_state]") {
  at::Generator generator = make(5);
  const GeneratorState state = GeneratorState::read(generator);
  const remat::GeneratorMark mark(generator);
  CHECK(state.is_current());
  CHECK_FALSE(mark.has_moved());
  SECTION("drawn") {
    at::rand({1}, generator);
  }
  SECTION("a block drawn, which brings the position back") {
    at::rand({624}, generator);
  }
  SECTION("seeded") {
    generator.set_current_seed(6);
  }
  CHECK_FALSE(state.is_current());
  CHECK(mark.has_moved());
  state.restore();
  CHECK(state.is_current());
  CHECK_FALSE(mark.has_moved());
}

TEST_CASE("Seeding anew with the same seed is the state after seeding", "[tape][generator_state]") {
  at::Generator generator = make(5);
  const GeneratorState state = GeneratorState::read(generator);
  at::rand({10}, generator);
  generator.set_current_seed(5);
  CHECK(state.is_current());
}

TEST_CASE("The second sample of a normal pair belongs to the state", "[tape][generator_state]") {
  // Box-Muller makes two samples at once, of which the generator keeps the second. Kernels use it
  // for sizes below 16.
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  const at::Generator generator = make(5);
  const auto draw = [&] { return at::empty({1}, dtype).normal_(0, 1, generator); };
  draw();  // leaves a sample behind
  const GeneratorState state = GeneratorState::read(generator);
  const at::Tensor second = draw();  // uses that sample, and draws no word of the twister
  CHECK_FALSE(state.is_current());
  state.restore();
  CHECK(same_bits(draw(), second));
}

TEST_CASE("An undefined generator has no state", "[tape][generator_state]") {
  CHECK_THROWS_WITH(
      GeneratorState::read(at::Generator()),
      ContainsSubstring("[GeneratorState] generator: expected a generator, got an undefined one."));
}

TEST_CASE(
    "The default generator comes first, then the named ones; those that did not move are dropped",
    "[tape][generator_state]") {
  const at::Generator quiet = make(1);
  const at::Generator drawn = make(2);
  std::vector<GeneratorState> states = remat::read_generators({quiet, drawn});
  REQUIRE(states.size() >= 3);  // more if CUDA devices are in use
  CHECK(states.front().generator() == at::detail::getDefaultCPUGenerator());
  CHECK(states.back().generator() == drawn);
  at::rand({1}, drawn);
  remat::drop_current(states);
  REQUIRE(states.size() == 1);
  CHECK(states[0].generator() == drawn);
}

TEST_CASE("While generators replay they draw as at entry; then they go on where they were",
          "[tape][generator_state]") {
  const at::Generator generator = make(5);
  std::vector<GeneratorState> entry;
  entry.push_back(GeneratorState::read(generator));
  const at::Tensor first = at::rand({4}, generator);
  const GeneratorState present = GeneratorState::read(generator);
  {
    const remat::KeptGenerators replay(entry);
    CHECK(same_bits(at::rand({4}, generator), first));
    {
      const remat::KeptGenerators nested(entry);  // on the same thread, which has the turn
      CHECK(same_bits(at::rand({4}, generator), first));
    }
    CHECK(present.is_current());  // The outer replay goes on after its first numbers.
  }
  CHECK(present.is_current());
}

TEST_CASE("Threads that replay with one generator take turns", "[tape][generator_state]") {
  const at::Generator generator = make(5);
  std::vector<GeneratorState> entry;
  entry.push_back(GeneratorState::read(generator));
  const at::Tensor first = at::rand({4}, generator);
  std::atomic<int> inside{0};
  std::atomic<int> wrong{0};
  const auto replay = [&] {
    for (int i = 0; i < 200; ++i) {
      const remat::Turn turn;
      const remat::KeptGenerators generators(entry);
      if (++inside != 1) ++wrong;
      if (!same_bits(at::rand({4}, generator), first)) ++wrong;
      --inside;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(replay);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace
