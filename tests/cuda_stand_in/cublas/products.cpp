// SPDX-License-Identifier: BSD-3-Clause

// cuBLAS on the stand-in: matrix products, which take virtual time and compute nothing.
#include "../control.h"
#include "handle.h"

using namespace cuda_stand_in;

namespace {

struct Sizes {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t batch = 1;
};

cublasStatus_t spend(cublasHandle_t handle, Sizes sizes, double flops_per_product = 2) {
  const double products =
      static_cast<double>(sizes.m) * sizes.n * static_cast<double>(sizes.k) * sizes.batch;
  cuda_stand_in_spend_flops(handle_of(handle)->stream, flops_per_product * products);
  return CUBLAS_STATUS_SUCCESS;
}

constexpr double kComplexFlops = 8;

}  // namespace

using Op = cublasOperation_t;

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, Op, Op, int m, int n, int k, const float*,
                              const float*, int, const float*, int, const float*, float*, int) {
  return spend(handle, {m, n, k});
}

cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, Op, Op, int m, int n, int k, const double*,
                              const double*, int, const double*, int, const double*, double*, int) {
  return spend(handle, {m, n, k});
}

cublasStatus_t cublasCgemm_v2(cublasHandle_t handle, Op, Op, int m, int n, int k, const cuComplex*,
                              const cuComplex*, int, const cuComplex*, int, const cuComplex*,
                              cuComplex*, int) {
  return spend(handle, {m, n, k}, kComplexFlops);
}

cublasStatus_t cublasZgemm_v2(cublasHandle_t handle, Op, Op, int m, int n, int k,
                              const cuDoubleComplex*, const cuDoubleComplex*, int,
                              const cuDoubleComplex*, int, const cuDoubleComplex*, cuDoubleComplex*,
                              int) {
  return spend(handle, {m, n, k}, kComplexFlops);
}

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, Op, Op, int m, int n, int k, const float*,
                             const void*, cudaDataType, int, const void*, cudaDataType, int,
                             const float*, void*, cudaDataType, int) {
  return spend(handle, {m, n, k});
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, Op, Op, int m, int n, int k, const void*,
                            const void*, cudaDataType, int, const void*, cudaDataType, int,
                            const void*, void*, cudaDataType, int, cublasComputeType_t,
                            cublasGemmAlgo_t) {
  return spend(handle, {m, n, k});
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, Op, Op, int m, int n, int k,
                                         const float*, const float*, int, long long, const float*,
                                         int, long long, const float*, float*, int, long long,
                                         int batch) {
  return spend(handle, {m, n, k, batch});
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, Op, Op, int m, int n, int k,
                                         const double*, const double*, int, long long,
                                         const double*, int, long long, const double*, double*, int,
                                         long long, int batch) {
  return spend(handle, {m, n, k, batch});
}

cublasStatus_t cublasCgemmStridedBatched(cublasHandle_t handle, Op, Op, int m, int n, int k,
                                         const cuComplex*, const cuComplex*, int, long long,
                                         const cuComplex*, int, long long, const cuComplex*,
                                         cuComplex*, int, long long, int batch) {
  return spend(handle, {m, n, k, batch}, kComplexFlops);
}

cublasStatus_t cublasZgemmStridedBatched(cublasHandle_t handle, Op, Op, int m, int n, int k,
                                         const cuDoubleComplex*, const cuDoubleComplex*, int,
                                         long long, const cuDoubleComplex*, int, long long,
                                         const cuDoubleComplex*, cuDoubleComplex*, int, long long,
                                         int batch) {
  return spend(handle, {m, n, k, batch}, kComplexFlops);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, Op, Op, int m, int n, int k,
                                          const void*, const void*, cudaDataType, int, long long,
                                          const void*, cudaDataType, int, long long, const void*,
                                          void*, cudaDataType, int, long long, int batch,
                                          cublasComputeType_t, cublasGemmAlgo_t) {
  return spend(handle, {m, n, k, batch});
}
