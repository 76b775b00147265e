// SPDX-License-Identifier: BSD-3-Clause

// Counts how deep a thread is in CUDA kernels whose numbers the host computes.
#include "covered.h"

#include "../control.h"

namespace cuda_stand_in {
namespace {

thread_local int depth = 0;

}  // namespace

Covered::Covered() {
  ++depth;
  cuda_stand_in_covered(1);
}

Covered::~Covered() {
  --depth;
  cuda_stand_in_covered(-1);
}

bool is_covered() {
  return depth > 0;
}

void count_garbage(const char* what) {
  cuda_stand_in_covered(-depth);
  cuda_stand_in_count_launch(what);
  cuda_stand_in_covered(depth);
}

}  // namespace cuda_stand_in
