// SPDX-License-Identifier: BSD-3-Clause

// The entry point by which LibTorch asks for functions of the driver.
#include <dlfcn.h>

#include "runtime.h"

using namespace cuda_stand_in;

namespace {

// Stands for every function that the stand-in's libcuda.so.1 does not have:
// CUDA_ERROR_NOT_SUPPORTED.
int not_supported() {
  return 801;
}

}  // namespace

CUDA_STAND_IN_API cudaError_t
cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                 cudaDriverEntryPointQueryResult* status) {
  *function = dlsym(RTLD_DEFAULT, name);
  note(LockedRuntime(), "%s of the driver is %s", name, *function ? "there" : "not supported");
  if (!*function) *function = reinterpret_cast<void*>(&not_supported);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
