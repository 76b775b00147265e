// SPDX-License-Identifier: BSD-3-Clause

// Holds the state of each thread.
#include "thread_state.h"

namespace cuda_stand_in {

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

cudaError_t fail(cudaError_t error) {
  this_thread().last_error = error;
  return error;
}

}  // namespace cuda_stand_in
