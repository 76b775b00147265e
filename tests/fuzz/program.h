// SPDX-License-Identifier: BSD-3-Clause

// Random programs over 4 x 4 tensors, with regions and named calls in them: data that runs with or
// without remat.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <remat/policy/policy.h>

namespace remat::fuzz {

enum class Op {
  kSin,
  kTanh,
  kRelu,
  kSoftmax,
  kLayerNorm,
  kMul,
  kAdd,
  kMatmul,
  kWeight,  // matmul with a parameter that the program closes over
  kDropout,
  kRandom,     // times fresh random numbers
  kTranspose,  // a view
  kReshape,    // a view
  kCat,
  kWindow,  // a view in the middle of a fresh tensor
  kIndex,
  kDetach,
  kClone,
  kScaleInPlace,
  kAddInPlace,
  kSelectInPlace,  // an in-place op on a view of the tensor
  kNoGrad,
  kCustom,         // an autograd::Function of C++
  kInnerGrad,      // autograd::grad inside, its graph kept
  kInnerBackward,  // backward() inside, into leaves of its own and into a parameter
  kReadBuffer,     // times what a buffer holds that the program closes over
  kWriteBuffer,
  kRegion,
  kCall,
  kCount,
  kSame,  // values[a] itself: what shrinking puts in the place of other steps
};

constexpr size_t kBuffers = 1;

struct Block;

/// Of a step kRegion.
struct RegionChoices {
  bool early_stop = true;
  bool compares = true;
  std::vector<std::string> saved_ops{};  // by the region's policy
  bool tape = false;                     // replay = kAuto
  std::vector<double> cuts{};            // of its tape, if one can be written: parts of its length
  size_t group = 0;                      // segments to a group, if there are so many; 0: none
};

/// Of a step kCall.
struct CallChoices {
  std::string name{};
  Policy policy = Policy::kSave;
  Keep keep = Keep::kInnermostRegion;
  bool no_grad = false;
  std::vector<size_t> arguments{};
  std::vector<size_t> captures{};
};

/// result = op(values[a], values[b]); in-place ops write values[a].
struct Step {
  Op op;
  size_t a;
  size_t b;
  std::vector<Block> block{};  // one if op is kRegion or kCall
  RegionChoices region{};
  CallChoices call{};
};

/// Takes a list of values and returns some of them. A region's block gets copies of the list, a
/// call's block its arguments and captures.
struct Block {
  size_t inputs;
  std::vector<Step> steps;
  std::vector<size_t> results;
};

struct Program {
  Block body;
};

/// What a run of a program leaves behind; or the first words of the error that it raised.
struct Outcome {
  std::vector<at::Tensor> tensors;
  std::optional<std::string> error;
  std::string message;   // all of it
  bool refused = false;  // the error is one of those that named calls raise by design
};

enum class Mode {
  kPlain,
  kCheckpointed,
  kRehearsal,  // the forward only, to see how long tapes are
};

/// How the graph is used once the forward has run.
enum class Use { kBackward, kRetainGraph, kPartialGrads, kDoubleBackward, kTwoInFlight, kCount };

Program make_program(std::mt19937_64& random);

/// Runs the program and its backward on parameters, buffers and inputs made from `seed`.
Outcome run(const Program& program, Mode mode, Use use, uint64_t seed);

/// How many values the step adds.
size_t result_count(const Step& step);

/// The program as indented text, for reports.
std::string to_string(const Block& block, int indent = 0);

}  // namespace remat::fuzz
