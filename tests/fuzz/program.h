// SPDX-License-Identifier: BSD-3-Clause

// Random programs over 4 x 4 tensors, with regions and named calls in them: data that runs with or
// without remat.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <remat/policy/policy.h>

#include "fuzz/ops.h"
#include "fuzz/uses.h"

namespace remat::fuzz {

constexpr size_t kWeights = 3;
constexpr size_t kBuffers = 1;  // without the bank

/// Tensors whose memory is freed after the forward. Until backward: all; for good: only the
/// buffers.
enum class Freed { kNone, kUntilBackward, kForGood };

/// Place of the third input, the third parameter and the bank, if the others are on a CUDA device.
enum class Placement { kOneDevice, kWithHost, kTwoDevices };

struct Block;

/// A rule of a region's policy.
struct OpRule {
  std::string op;  // or a preset's name
  Policy policy;
  bool is_preset = false;

  bool operator==(const OpRule& other) const {
    return op == other.op && policy == other.policy && is_preset == other.is_preset;
  }
};

/// Choices of a kRegion step.
struct RegionChoices {
  std::vector<size_t> arguments{};  // values that are passed; others are captured
  bool early_stop = true;
  bool compares = true;
  bool hooks = false;  // opens saved_tensors_hooks
  std::vector<OpRule> rules{};
  bool tape = false;           // replay = kAuto
  std::vector<double> cuts{};  // cuts of its tape, if it has one, as fractions
  size_t group = 0;            // segments in a group, if there are so many; 0: no groups
};

/// Choices of a kCall step.
struct CallChoices {
  std::string name{};
  Policy policy = Policy::kSave;
  Keep keep = Keep::kInnermostRegion;
  bool no_grad = false;
  std::vector<size_t> arguments{};
  std::vector<size_t> captures{};
};

/// Choices of a kScope step.
struct ScopeChoices {
  enum class Kind {
    kNone,
    kAutocast,
    kHooks,
    kNames,
    kDevice,        // makes the second device the current one
    kStream,        // makes another stream of the first device current
    kSecondStream,  // makes another stream of the second device current
    kLateStream,    // like kStream, but the caller of the region around waits for it
  };
  Kind kind = Kind::kNone;
  std::string name{};
};

/// results = op(values[a], values[b]); in-place ops write values[a].
struct Step {
  Op op;
  size_t a;
  size_t b;
  std::vector<Block> block{};  // one if op is kRegion, kCall or kScope
  RegionChoices region{};
  CallChoices call{};
  ScopeChoices scope{};
};

/// A function that takes a list of values and returns some of them.
struct Block {
  size_t inputs;
  std::vector<Step> steps;
  std::vector<size_t> results;
};

struct Program {
  Block body;
  Use use = Use::kBackward;
  Freed freed = Freed::kNone;
  Placement placement = Placement::kOneDevice;
  bool one_thread = false;  // all autograd nodes run on the thread that calls backward
  uint64_t seed = 0;        // seed of its parameters, buffers and inputs
};

/// True if the program's store is an offload engine, false if it copies at once.
inline bool moves_storages(const Program& program) {
  return program.seed % 2 == 1;
}

Program make_program(uint64_t seed);

/// Returns a program with every op, and every kind of step, region and call.
Program program_of_everything();

/// True if gradients may come from more than one of autograd's threads, so that the order in which
/// they are added up, and the bits of their sum, are not the same in each run.
bool may_race(const Program& program);

/// Returns the number of values that the step adds.
size_t result_count(const Step& step);

/// Returns the indices of the values around that are inputs of the step's block: a call's arguments
/// and captures, or all values for a region or a scope.
std::vector<size_t> block_inputs(const Step& step);

/// Returns which of the block's inputs it reads, writes or returns.
std::set<size_t> used_inputs(const Block& block);

/// True if `is_such` is true of a step, at any depth.
bool any_step(const Block& block, const std::function<bool(const Step&)>& is_such);

}  // namespace remat::fuzz
