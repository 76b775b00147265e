// SPDX-License-Identifier: BSD-3-Clause

// States of random number generators: read at region entry, set for a replay, put back after it.
#pragma once

#include <ATen/core/Generator.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

/// The state of one generator at one moment. Holds the generator.
class REMAT_API GeneratorState {
 public:
  /// Reads the state under the generator's own mutex. Throws ValueError if `generator` is
  /// undefined.
  static GeneratorState read(const at::Generator& generator);

  GeneratorState(GeneratorState&&) noexcept;
  GeneratorState& operator=(GeneratorState&&) noexcept;
  ~GeneratorState();

  const at::Generator& generator() const { return generator_; }

  /// True if the generator is still in this state: nobody has drawn from it or seeded it since.
  bool is_current() const;

  /// Sets the generator back to this state.
  void restore() const;

 private:
  class Value;
  class CpuValue;
  class PhiloxValue;
  class OpaqueValue;

  GeneratorState(at::Generator generator, std::unique_ptr<Value> value);

  at::Generator generator_;
  std::unique_ptr<Value> value_;
};

/// States of the default generators of the CPU and of each CUDA device in use, then of `named`.
REMAT_API std::vector<GeneratorState> read_generators(const std::vector<at::Generator>& named);

/// Keeps only the states whose generator has moved since.
REMAT_API void drop_current(std::vector<GeneratorState>& states);

/// Tells, from a few words of a generator's state, whether it has moved since. Holds the generator.
class REMAT_API GeneratorMark {
 public:
  explicit GeneratorMark(const at::Generator& generator);

  const at::Generator& generator() const { return generator_; }
  bool has_moved() const;

 private:
  // Position of the CPU's Mersenne Twister, and some words of its state. All words change after 624
  // draws.
  using Words = std::array<uint64_t, 12>;
  static Words words_of(c10::GeneratorImpl& cpu);
  friend uint64_t position_of(const at::Generator& generator);

  at::Generator generator_;
  Words words_{};
  std::optional<GeneratorState> state_;  // For generators other than the CPU's.
};

/// A hash of the generator's position: for the CPU of the words that a GeneratorMark has, for CUDA
/// of seed and offset; 0 for others.
REMAT_API uint64_t position_of(const at::Generator& generator);

/// Marks of the generators that read_generators() reads.
REMAT_API std::vector<GeneratorMark> mark_generators(const std::vector<at::Generator>& named);

/// On destruction sets each generator back to its state at add().
class REMAT_API KeptGenerators {
 public:
  KeptGenerators() = default;
  KeptGenerators(const KeptGenerators&) = delete;
  KeptGenerators& operator=(const KeptGenerators&) = delete;
  ~KeptGenerators();

  void add(const at::Generator& generator) { present_.push_back(GeneratorState::read(generator)); }

 private:
  std::vector<GeneratorState> present_;
};

/// While alive, the generators of `states` are in those states; afterwards they continue where they
/// were. Not for two threads at once: see Turn.
///
/// Note [Generators and threads]: a generator is one stream for the whole process. Replays that
/// draw take turns, by thread. A forward that draws in another thread meanwhile is not held back:
/// threads that draw at the same time need generators of their own, with or without remat.
class REMAT_API ReplayGenerators {
 public:
  explicit ReplayGenerators(const std::vector<GeneratorState>& states);

 private:
  KeptGenerators kept_;
};

}  // namespace remat
