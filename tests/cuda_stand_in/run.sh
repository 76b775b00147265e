#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# run.sh COMMAND...: runs a program on CUDA: on the GPU if the machine has one, else on the stand-in, whose libraries lie beside this
# script in the build folder. README.md has the variables.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if "$here/find_gpu"; then
  exec "$@"
fi

libraries=()
for name in libcudart.so.13 libcuda.so.1 libcublas_stand_in.so libcublaslt_stand_in.so libnvrtc.so.13; do
  # The loader would go on without a library that is missing.
  if [ ! -e "$here/$name" ]; then
    echo "[run.sh] expected $name in $here, got none. Build the target cuda_stand_in." >&2
    exit 2
  fi
  libraries+=("$here/$name")
done
if [ ! -v CUDA_STAND_IN_KERNELS ] && [ -e "$here/libcuda_stand_in_kernels.so" ]; then
  export CUDA_STAND_IN_KERNELS=$here/libcuda_stand_in_kernels.so
fi
preloaded=$(IFS=:; echo "${libraries[*]}")
export LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$preloaded
exec "$@"
