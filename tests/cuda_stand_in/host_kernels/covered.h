// SPDX-License-Identifier: BSD-3-Clause

// Marks launches of a thread as parts of an op that the host computes.
#pragma once

namespace cuda_stand_in {

/// Launches on this thread are parts of an op that the host computes while this object lives.
class Covered {
 public:
  Covered();
  ~Covered();
  Covered(const Covered&) = delete;
  Covered& operator=(const Covered&) = delete;
};

/// True inside the CUDA kernel of an op that the host computes.
bool is_covered();

/// Counts `what` as a launch that nobody computed, wherever this thread is.
void count_garbage(const char* what);

}  // namespace cuda_stand_in
