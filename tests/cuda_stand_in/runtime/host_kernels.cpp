// SPDX-License-Identifier: BSD-3-Clause

// Loads the library of host kernels when the program first counts devices after LibTorch has
// registered its own kernels. No kernel of an op has been looked up by then.
#include "host_kernels.h"

#include <dlfcn.h>

#include <atomic>
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

// Returns true unless LibTorch has yet to register its kernels.
bool install() {
  const char* const path = std::getenv("CUDA_STAND_IN_KERNELS");
  if (!path || !*path) return true;
  if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD)) return false;
  void* const library = dlopen(path, RTLD_NOW);
  if (!library) stop(path);
  void* const function = dlsym(library, "cuda_stand_in_install_kernels");
  if (!function) stop(path);
  return reinterpret_cast<int (*)()>(function)() > 0;
}

}  // namespace

void load_host_kernels() {
  static std::atomic<bool> is_done{false};
  static std::mutex mutex;
  if (is_done.load(std::memory_order_acquire) || is_installing) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (is_done) return;
  is_installing = true;
  is_done = install();
  is_installing = false;
}

}  // namespace cuda_stand_in
