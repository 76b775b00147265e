// SPDX-License-Identifier: BSD-3-Clause

// cuBLASLt on the stand-in: descriptors, and matrix products, which take virtual time and compute
// nothing.
#include <cublasLt.h>

#include <cstring>

#include "../control.h"

namespace {

struct Layout {
  uint64_t rows;
  uint64_t columns;
  int batch = 1;
};

struct Product {
  int transposes_a = CUBLAS_OP_N;
};

struct Preference {};

Layout* layout_of(cublasLtMatrixLayout_t handle) {
  return reinterpret_cast<Layout*>(handle);
}

Product* product_of(cublasLtMatmulDesc_t handle) {
  return reinterpret_cast<Product*>(handle);
}

}  // namespace

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType,
                                          uint64_t rows, uint64_t columns, int64_t) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{rows, columns});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout_of(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    std::memcpy(&layout_of(layout)->batch, value, sizeof(int));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t,
                                        cudaDataType_t) {
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product_of(product);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t) {
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA)
    std::memcpy(&product_of(product)->transposes_a, value, sizeof(int));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = requested > 0 ? 1 : 0;
  if (*found) results[0] = {};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void*,
                              const void*, cublasLtMatrixLayout_t a_handle, const void*,
                              cublasLtMatrixLayout_t, const void*, const void*,
                              cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t result_handle,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  const Layout& a = *layout_of(a_handle);
  const Layout& result = *layout_of(result_handle);
  const bool is_plain = product_of(product)->transposes_a == CUBLAS_OP_N;
  const auto inner = static_cast<double>(is_plain ? a.columns : a.rows);
  const double outputs = static_cast<double>(result.rows) * static_cast<double>(result.columns);
  cuda_stand_in_spend_flops(stream, 2 * outputs * inner * result.batch);
  return CUBLAS_STATUS_SUCCESS;
}
