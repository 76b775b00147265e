// SPDX-License-Identifier: BSD-3-Clause

// Symbols that a program compiled here needs and that glibc 2.28 and GCC 8's libstdc++
// (manylinux_2_28) lack. They are linked into each library of a wheel and hidden there.
// tools/build_wheels.sh adds objects from GCC's own libstdc++.a, and stops at any symbol that is
// still newer.
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <sstream>
#include <string>

#include <bits/functexcept.h>

// Two members that libstdc++ has since GCC 11, and that its headers declared earlier.
template std::string std::stringbuf::str() const&;
template std::istringstream::basic_istringstream(std::string&&, std::ios_base::openmode);

namespace std {

void __throw_bad_array_new_length() {
  throw std::bad_array_new_length();
}

}  // namespace std

extern "C" {

// 0 means that there may be threads. With an older glibc, shared_ptr always assumes this.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// fstat, lstat and stat are symbols since glibc 2.33. On 64 bits, struct stat is the kernel's.
int fstat(int descriptor, struct stat* result) noexcept {
  return static_cast<int>(syscall(SYS_fstat, descriptor, result));
}
int lstat(const char* path, struct stat* result) noexcept {
  return static_cast<int>(syscall(SYS_lstat, path, result));
}
int stat(const char* path, struct stat* result) noexcept {
  return static_cast<int>(syscall(SYS_stat, path, result));
}

// pthread_getname_np was in libpthread until glibc 2.34. Calls the older symbol, which newer ones
// have.
int older_getname(pthread_t, char*, size_t) noexcept;
__asm__(".symver older_getname, pthread_getname_np@GLIBC_2.12");
int pthread_getname_np(pthread_t thread, char* name, size_t size) noexcept {
  return older_getname(thread, name, size);
}

}  // extern "C"
