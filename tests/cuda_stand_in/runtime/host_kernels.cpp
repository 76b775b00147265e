// SPDX-License-Identifier: BSD-3-Clause

// Loads the library of host kernels when the program first asks for device memory: LibTorch has
// registered its own kernels by then, and no kernel of an op has been launched.
#include "host_kernels.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace cuda_stand_in {
namespace {

// True while this thread installs host kernels; doing so may ask for device memory.
thread_local bool is_installing = false;

[[noreturn]] void stop(const char* path) {
  std::fprintf(stderr,
               "[cuda stand-in] CUDA_STAND_IN_KERNELS: expected the library of host kernels, got "
               "\"%s\": %s.\nSet it to the path of libcuda_stand_in_kernels.so, or unset it.\n",
               path, dlerror());
  std::abort();
}

void install() {
  const char* const path = std::getenv("CUDA_STAND_IN_KERNELS");
  if (!path || !*path) return;
  is_installing = true;
  void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) stop(path);
  void* const function = dlsym(library, "cuda_stand_in_install_kernels");
  if (!function) stop(path);
  reinterpret_cast<void (*)()>(function)();
  is_installing = false;
}

}  // namespace

void load_host_kernels() {
  static std::once_flag once;
  if (!is_installing) std::call_once(once, install);
}

}  // namespace cuda_stand_in
