// SPDX-License-Identifier: BSD-3-Clause

// The command line of gpt2_train.
#pragma once

#include "model.h"

#include <cstdint>
#include <filesystem>

namespace gpt2_train {

struct Options {
  Gpt2Config model;
  int64_t batch = 8;
  int64_t steps = 12;
  double learning_rate = 1e-3;
  uint64_t seed = 1;
  int threads = 1;             // one gives the steadiest figures; 0: LibTorch's default
  std::filesystem::path text;  // file or folder
};

}  // namespace gpt2_train
