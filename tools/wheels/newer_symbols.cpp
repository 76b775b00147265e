// SPDX-License-Identifier: BSD-3-Clause

// What a program compiled here asks of glibc and libstdc++ that those of manylinux_2_28
// (glibc 2.28, GCC 8) do not have, linked into each library of a wheel and hidden there.
// tools/build_wheels.sh adds what it takes from GCC's own libstdc++.a, and stops at any symbol that
// is still newer.
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <sstream>
#include <string>

#include <bits/functexcept.h>

// Declared, but in the library only since GCC 11: made here of the headers' own code.
template std::string std::stringbuf::str() const&;
template std::istringstream::basic_istringstream(std::string&&, std::ios_base::openmode);

namespace std {

void __throw_bad_array_new_length() {
  throw std::bad_array_new_length();
}

}  // namespace std

extern "C" {

// "There may be threads": what shared_ptr takes for granted with an older glibc.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// Names of their own since glibc 2.33; the kernel's struct stat is glibc's on 64 bits.
int fstat(int descriptor, struct stat* result) noexcept {
  return static_cast<int>(syscall(SYS_fstat, descriptor, result));
}
int lstat(const char* path, struct stat* result) noexcept {
  return static_cast<int>(syscall(SYS_lstat, path, result));
}
int stat(const char* path, struct stat* result) noexcept {
  return static_cast<int>(syscall(SYS_stat, path, result));
}

// In libpthread until glibc 2.34.
int older_getname(pthread_t, char*, size_t) noexcept;
__asm__(".symver older_getname, pthread_getname_np@GLIBC_2.12");
int pthread_getname_np(pthread_t thread, char* name, size_t size) noexcept {
  return older_getname(thread, name, size);
}

}  // extern "C"
