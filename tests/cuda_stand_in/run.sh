#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# run.sh COMMAND...: runs a program on CUDA: on the GPU if the machine has one, else on the stand-in, whose libraries lie beside this
# script in the build folder. README.md has the variables.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if "$here/find_gpu"; then
  exec "$@"
fi

libraries=$here/libcudart.so.13:$here/libcuda.so.1:$here/libcublas_stand_in.so:$here/libcublaslt_stand_in.so
if [ -e "$here/libnvrtc.so.13" ]; then
  libraries+=:$here/libnvrtc.so.13
fi
if [ ! -v CUDA_STAND_IN_KERNELS ] && [ -e "$here/libcuda_stand_in_kernels.so" ]; then
  export CUDA_STAND_IN_KERNELS=$here/libcuda_stand_in_kernels.so
fi
export LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$libraries
exec "$@"
