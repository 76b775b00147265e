// SPDX-License-Identifier: BSD-3-Clause

// Replaces a header of the CUDA toolkit that the headers in LibTorch's wheel include but that the
// wheel lacks: how a host compiler sees CUDA's keywords. Empty macros are keywords that matter to
// nvcc alone.
#pragma once

#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __no_return__ __attribute__((noreturn))
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __cudart_builtin__
#define __CUDA_HOSTDEVICE__
#define __specialization_static
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __grid_constant__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDAAPI
#define CUDACB
