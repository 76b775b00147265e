// SPDX-License-Identifier: BSD-3-Clause

// The command line of gpt2_train.
#pragma once

#include "model.h"

#include <cstdint>
#include <filesystem>
#include <variant>

namespace gpt2_train {

struct Options {
  Gpt2Config model;
  int64_t batch = 8;
  int64_t steps = 12;
  double learning_rate = 1e-3;
  uint64_t seed = 1;
  int threads = 1;             // one gives the steadiest figures; 0: LibTorch's default
  std::filesystem::path text;  // file or folder
  bool json = false;
};

/// Reads the command line. Returns an exit status instead of options after --help or a wrong
/// option, once that has been explained.
std::variant<Options, int> parse_options(int argc, char** argv);

}  // namespace gpt2_train
