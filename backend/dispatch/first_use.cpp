// SPDX-License-Identifier: BSD-3-Clause

#include <remat/backend/first_use.h>

#include <vector>

namespace remat::detail {
namespace {

/// The functions that first_use() runs. The list is leaked, and made when it is first asked for,
/// because static initialisers of other files add to it.
std::vector<void (*)()>& noted() {
  static auto& functions = *new std::vector<void (*)()>;
  return functions;
}

}  // namespace

void at_first_use(void (*function)()) {
  noted().push_back(function);
}

void first_use() {
  // Not std::call_once(), which needs a newer glibc than wheels are made for.
  static const bool done = [] {
    for (void (*const function)() : noted()) function();
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace remat::detail
