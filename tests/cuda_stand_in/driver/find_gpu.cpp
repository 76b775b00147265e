// SPDX-License-Identifier: BSD-3-Clause

// Exits with 0 if the machine has a GPU and a driver for it, else with 1.
#include <dlfcn.h>

int main() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return 1;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  const bool is_found = init && get_count && init(0) == 0 && get_count(&devices) == 0;
  return is_found && devices > 0 ? 0 : 1;
}
