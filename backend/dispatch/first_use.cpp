// SPDX-License-Identifier: BSD-3-Clause

#include <remat/backend/first_use.h>

#include <mutex>
#include <vector>

namespace remat::detail {
namespace {

/// Leaked, and made at its first use: initialisers of other files add to it.
std::vector<void (*)()>& noted() {
  static auto& functions = *new std::vector<void (*)()>;
  return functions;
}

}  // namespace

void at_first_use(void (*function)()) {
  noted().push_back(function);
}

void first_use() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (void (*const function)() : noted()) function();
  });
}

}  // namespace remat::detail
