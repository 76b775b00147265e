// SPDX-License-Identifier: BSD-3-Clause

// The object that a handle of cuBLAS points to on the stand-in.
#pragma once

#include <cublas_v2.h>

namespace cuda_stand_in {

struct Handle {
  cudaStream_t stream = nullptr;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
};

inline Handle* handle_of(cublasHandle_t handle) {
  return reinterpret_cast<Handle*>(handle);
}

}  // namespace cuda_stand_in
