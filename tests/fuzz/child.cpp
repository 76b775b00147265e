// SPDX-License-Identifier: BSD-3-Clause

// Checks random programs in a child process.
#include "fuzz/child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <cstring>
#include <optional>
#include <string>

// Function of the leak sanitizer, which by itself checks at exit() only.
extern "C" __attribute__((weak)) int __lsan_do_recoverable_leak_check();
/// LibTorch's pool of threads for its own kernels is made at first use, and never freed.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:caffe2::pthreadpool\n";
}

namespace remat::fuzz {
namespace {

constexpr unsigned kMostSeconds = 60;  // time limit of one program

/// Exit status of a child with leaks; children end by _exit().
constexpr int kLeaks = 23;

void write_all(int pipe, const void* data, size_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written = write(pipe, at, bytes);
    if (written <= 0) _exit(1);
    at += written;
    bytes -= static_cast<size_t>(written);
  }
}

bool read_all(int pipe, void* data, size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = read(pipe, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

void write_text(int pipe, const std::string& text) {
  const size_t bytes = text.size();
  write_all(pipe, &bytes, sizeof bytes);
  write_all(pipe, text.data(), bytes);
}

bool read_text(int pipe, std::string& text) {
  size_t bytes = 0;
  if (!read_all(pipe, &bytes, sizeof bytes)) return false;
  text.resize(bytes);
  return read_all(pipe, text.data(), bytes);
}

/// Writes the verdict for the parent. The child is a fork, so a pointer to a rule is valid in both
/// processes.
void write_verdict(int pipe, const Verdict& verdict) {
  write_text(pipe, verdict.failure);
  write_text(pipe, verdict.message);
  write_all(pipe, &verdict.raised, sizeof verdict.raised);
  write_all(pipe, &verdict.refusal, sizeof verdict.refusal);
  write_all(pipe, &verdict.note, sizeof verdict.note);
}

std::optional<Verdict> read_verdict(int pipe) {
  Verdict verdict;
  if (read_text(pipe, verdict.failure) && read_text(pipe, verdict.message) &&
      read_all(pipe, &verdict.raised, sizeof verdict.raised) &&
      read_all(pipe, &verdict.refusal, sizeof verdict.refusal) &&
      read_all(pipe, &verdict.note, sizeof verdict.note))
    return verdict;
  return std::nullopt;
}

std::string ending(int status) {
  if (WIFEXITED(status))
    return WEXITSTATUS(status) == kLeaks ? "leaks" : c10::str("exit ", WEXITSTATUS(status));
  return WTERMSIG(status) == SIGALRM ? "waits for ever" : strsignal(WTERMSIG(status));
}

struct Child {
  pid_t process;
  int verdicts;
};

/// Forks a child and runs `work(pipe)` in it.
Child start(const std::function<void(int)>& work) {
  int ends[2];
  TORCH_CHECK(pipe(ends) == 0);
  const pid_t process = fork();
  if (process == 0) {
    close(ends[0]);
    // LibTorch makes its thread pool anew after a fork. Two of autograd's threads must not do so at
    // once.
    at::set_num_threads(1);
    work(ends[1]);
    _exit(__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check() ? kLeaks : 0);
  }
  close(ends[1]);
  return {process, ends[0]};
}

/// Returns how the child ended; empty if it ended well.
std::string finish(const Child& child) {
  close(child.verdicts);
  int status = 0;
  waitpid(child.process, &status, 0);
  return status == 0 ? "" : "remat: " + ending(status);
}

}  // namespace

void check_in_children(uint64_t first, uint64_t count, const Check& check,
                       const std::function<void(uint64_t, const Verdict&)>& take) {
  uint64_t seed = first;
  while (seed < first + count) {
    const Child child = start([&](int pipe) {
      for (uint64_t next = seed; next < first + count; ++next) {
        alarm(kMostSeconds);
        write_verdict(pipe, check(make_program(next)));
      }
    });
    for (; const auto verdict = read_verdict(child.verdicts); ++seed) take(seed, *verdict);
    const std::string how = finish(child);
    // After the last program, `how` may be a leak of any of them.
    if (!how.empty()) take(seed == first + count ? seed - 1 : seed++, {.failure = how});
  }
}

Verdict check_in_child(const Program& program, const Check& check) {
  const Child child = start([&](int pipe) {
    alarm(kMostSeconds);
    write_verdict(pipe, check(program));
  });
  Verdict verdict = read_verdict(child.verdicts).value_or(Verdict{});
  const std::string how = finish(child);
  if (!how.empty()) verdict.failure = how;
  return verdict;
}

std::string text_of_child(const std::function<std::string()>& make) {
  return check_in_child({}, [&](const Program&) { return Verdict{.message = make()}; }).message;
}

}  // namespace remat::fuzz
