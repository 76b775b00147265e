// SPDX-License-Identifier: BSD-3-Clause

// States of random number generators: read at region entry, set for a replay, put back after it.
#pragma once

#include <ATen/core/Generator.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/op_call.h>

namespace at {
struct CPUGeneratorImpl;
}

namespace remat {

/// The state of one generator at one moment. Holds the generator.
class REMAT_API GeneratorState {
 public:
  /// Reads the state under the generator's mutex. Throws ValueError if `generator` is undefined.
  static GeneratorState read(const at::Generator& generator);

  const at::Generator& generator() const { return generator_; }

  /// True if the generator is still in this state: nobody has drawn from it or seeded it since.
  bool is_current() const;

  void restore() const;

 private:
  /// The Mersenne Twister of the CPU: its words (2.5 kB), its position in the words and the two
  /// cached normal samples.
  struct Twister {
    uint64_t seed;
    int left;
    bool seeded;
    uint32_t next;
    std::shared_ptr<const std::array<uint32_t, 624>> words;
    std::optional<float> next_float;
    std::optional<double> next_double;
    bool operator==(const Twister& other) const;
  };
  /// CUDA's counter-based generator: seed and offset are its whole state, and reading them
  /// allocates nothing.
  using Philox = std::pair<uint64_t, uint64_t>;
  /// The state tensor, on the CPU, of any other generator.
  using Opaque = c10::intrusive_ptr<c10::TensorImpl>;
  using Value = std::variant<Twister, Philox, Opaque>;

  GeneratorState(at::Generator generator, Value value)
      : generator_(std::move(generator)), value_(std::move(value)) {}
  static Value value_of(c10::GeneratorImpl& generator);
  static Twister read_twister(at::CPUGeneratorImpl& cpu);

  at::Generator generator_;
  Value value_;
};

/// States of the default generators of the CPU and of each CUDA device in use, then of `named`.
REMAT_API std::vector<GeneratorState> read_generators(const std::vector<at::Generator>& named);

/// Removes the states whose generator has not moved since they were read.
REMAT_API void drop_current(std::vector<GeneratorState>& states);

/// Tells, from a few words of a generator's state, whether the generator has moved since the mark
/// was made. Holds the generator.
class REMAT_API GeneratorMark {
 public:
  explicit GeneratorMark(const at::Generator& generator);

  const at::Generator& generator() const { return generator_; }
  bool has_moved() const;

 private:
  // Position in the words of the CPU's Mersenne Twister, and some of the words. The position
  // repeats after 624 draws, but then all words have changed, so a few of them suffice.
  using Words = std::array<uint64_t, 12>;
  static Words words_of(c10::GeneratorImpl& cpu);
  friend uint64_t position_of(const at::Generator& generator);

  at::Generator generator_;
  Words words_{};
  std::optional<GeneratorState> state_;  // For generators other than the CPU's.
};

/// A hash of the generator's position: for the CPU a hash of the words that a GeneratorMark has,
/// for CUDA of seed and offset; 0 for others.
REMAT_API uint64_t position_of(const at::Generator& generator);

/// Marks of the generators that read_generators() reads.
REMAT_API std::vector<GeneratorMark> mark_generators(const std::vector<at::Generator>& named);

/// A number that changes whenever the op would draw other numbers, which exposes a replay whose
/// function seeds a generator differently. The generator is the op's generator argument, or else
/// the default generator of the op's device. 0 for devices other than CPU and CUDA. Call it before
/// the op runs, for an op that may draw.
uint64_t draw_position(const OpCall& call);

/// On destruction sets each generator back to its state at add(). Callers take turns: see Turn.
///
/// Note [Generators and threads]: a generator is one stream for the whole process. Replays of
/// different threads that draw take turns. A forward that draws in another thread during a replay
/// does not wait, because threads that draw at the same time need their own generators anyway.
class REMAT_API KeptGenerators {
 public:
  KeptGenerators() = default;
  /// Adds the generators of `states` and sets them to these states.
  explicit KeptGenerators(const std::vector<GeneratorState>& states);
  KeptGenerators(const KeptGenerators&) = delete;
  KeptGenerators& operator=(const KeptGenerators&) = delete;
  ~KeptGenerators();

  void add(const at::Generator& generator) { present_.push_back(GeneratorState::read(generator)); }

 private:
  std::vector<GeneratorState> present_;
};

}  // namespace remat
