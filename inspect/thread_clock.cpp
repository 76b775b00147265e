// SPDX-License-Identifier: BSD-3-Clause

#include <remat/inspect/thread_clock.h>

#include <algorithm>

namespace remat {
namespace {

/// Limit on wall time added since the last exact reading, in case the thread was interrupted.
constexpr int64_t kMostWallNs = 15'000;

struct Answers {
  int64_t exact_ns = 0;            // last result of thread_ns()
  int64_t wall_ns = -kMostWallNs;  // wall time of that reading
  int64_t newest_ns = 0;
};

}  // namespace

int64_t frequent_thread_ns() {
  static thread_local Answers answers;
  const int64_t now_ns = wall_ns();
  int64_t since_ns = now_ns - answers.wall_ns;
  if (since_ns >= kMostWallNs) {
    answers.exact_ns = thread_ns();
    answers.wall_ns = now_ns;
    since_ns = 0;
  }
  answers.newest_ns = std::max(answers.newest_ns, answers.exact_ns + since_ns);
  return answers.newest_ns;
}

}  // namespace remat
