// SPDX-License-Identifier: BSD-3-Clause

// Entry points about errors.
#include "runtime.h"

using namespace cuda_stand_in;

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

// The texts are those of the real runtime, by which programs tell errors apart.
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const ErrorText& text_of(cudaError_t error) {
  static constexpr ErrorText kOther = {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const ErrorText& known : kErrors)
    if (known.error == error) return known;
  return kOther;
}

}  // namespace

CUDA_STAND_IN_API cudaError_t cudaGetLastError() {
  const cudaError_t error = this_thread().last_error;
  this_thread().last_error = cudaSuccess;
  return error;
}

CUDA_STAND_IN_API cudaError_t cudaPeekAtLastError() {
  return this_thread().last_error;
}

CUDA_STAND_IN_API const char* cudaGetErrorName(cudaError_t error) {
  return text_of(error).name;
}

CUDA_STAND_IN_API const char* cudaGetErrorString(cudaError_t error) {
  return text_of(error).text;
}
