// SPDX-License-Identifier: BSD-3-Clause

// Random programs over 4 x 4 tensors, with regions in them: data that runs with or without remat.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

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
  kRegion,
  kCount,
};

struct Block;

/// result = op(values[a], values[b]); in-place ops write values[a].
struct Step {
  Op op;
  size_t a;
  size_t b;
  std::vector<Block> region;  // one block if op is kRegion
};

/// Takes a list of values and returns some of them. A region's block gets copies of the list.
struct Block {
  std::vector<Step> steps;
  std::vector<size_t> results;
};

struct Program {
  Block body;
  size_t inputs;
};

/// What a run of a program leaves behind; or the first words of the error that it raised.
struct Outcome {
  std::vector<at::Tensor> tensors;
  std::optional<std::string> error;
};

enum class Mode { kPlain, kCheckpointed };

/// How the graph is used once the forward has run.
enum class Use { kBackward, kRetainGraph, kPartialGrads, kDoubleBackward, kTwoInFlight, kCount };

Program make_program(std::mt19937_64& random);

/// Runs the program and its backward on parameters and inputs made from `seed`.
Outcome run(const Program& program, Mode mode, Use use, uint64_t seed);

/// The program as indented text, for reports.
std::string to_string(const Block& block, int indent = 0);

}  // namespace remat::fuzz
