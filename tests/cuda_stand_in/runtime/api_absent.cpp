// SPDX-License-Identifier: BSD-3-Clause

// Entry points of features that the stand-in does not have: graphs, memory of other processes,
// memory pools.
#include "runtime.h"

using namespace cuda_stand_in;

namespace {

cudaError_t absent(const char* name) {
  note(LockedRuntime(), "%s is not supported", name);
  return fail(cudaErrorNotSupported);
}

}  // namespace

#define CUDA_STAND_IN_ABSENT(name, ...)             \
  CUDA_STAND_IN_API cudaError_t name(__VA_ARGS__) { \
    return absent(#name);                           \
  }

CUDA_STAND_IN_ABSENT(cudaStreamBeginCapture, cudaStream_t, cudaStreamCaptureMode)
CUDA_STAND_IN_ABSENT(cudaStreamEndCapture, cudaStream_t, cudaGraph_t*)
CUDA_STAND_IN_ABSENT(cudaGraphDebugDotPrint, cudaGraph_t, const char*, unsigned)
CUDA_STAND_IN_ABSENT(cudaGraphDestroy, cudaGraph_t)
CUDA_STAND_IN_ABSENT(cudaGraphExecDestroy, cudaGraphExec_t)
CUDA_STAND_IN_ABSENT(cudaGraphGetNodes, cudaGraph_t, cudaGraphNode_t*, size_t*)
CUDA_STAND_IN_ABSENT(cudaGraphInstantiateWithFlags, cudaGraphExec_t*, cudaGraph_t,
                     unsigned long long)
CUDA_STAND_IN_ABSENT(cudaGraphLaunch, cudaGraphExec_t, cudaStream_t)
CUDA_STAND_IN_ABSENT(cudaGraphNodeGetDependencies, cudaGraphNode_t, cudaGraphNode_t*,
                     cudaGraphEdgeData*, size_t*)

CUDA_STAND_IN_ABSENT(cudaIpcCloseMemHandle, void*)
CUDA_STAND_IN_ABSENT(cudaIpcGetEventHandle, cudaIpcEventHandle_t*, cudaEvent_t)
CUDA_STAND_IN_ABSENT(cudaIpcGetMemHandle, cudaIpcMemHandle_t*, void*)
CUDA_STAND_IN_ABSENT(cudaIpcOpenEventHandle, cudaEvent_t*, cudaIpcEventHandle_t)
CUDA_STAND_IN_ABSENT(cudaIpcOpenMemHandle, void**, cudaIpcMemHandle_t, unsigned)

CUDA_STAND_IN_ABSENT(cudaMallocAsync, void**, size_t, cudaStream_t)
CUDA_STAND_IN_ABSENT(cudaFreeAsync, void*, cudaStream_t)
CUDA_STAND_IN_ABSENT(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
CUDA_STAND_IN_ABSENT(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
CUDA_STAND_IN_ABSENT(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
CUDA_STAND_IN_ABSENT(cudaMemPoolSetAccess, cudaMemPool_t, const cudaMemAccessDesc*, size_t)
CUDA_STAND_IN_ABSENT(cudaMemPoolTrimTo, cudaMemPool_t, size_t)
