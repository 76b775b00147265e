# SPDX-License-Identifier: BSD-3-Clause

# libbacktrace, which comes with g++: recordings use it to name lines of C++. REMAT_HAS_BACKTRACE is on if it is found; otherwise
# recordings have addresses. libbacktrace is linked into libremat.so with hidden symbols, so that users may have their own copy. A
# static remat is built without libbacktrace, which its users would have to link.
include(CheckCXXSourceCompiles)
if(BUILD_SHARED_LIBS)
  set(CMAKE_REQUIRED_LIBRARIES backtrace)
  check_cxx_source_compiles("
    #include <backtrace.h>
    int main() { return backtrace_create_state(nullptr, 1, nullptr, nullptr) == nullptr; }" REMAT_HAS_BACKTRACE)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()

# remat_compile_with_backtrace(source): allows the source to include <backtrace.h>, which other compilers and clang-tidy do not
# find by themselves.
function(remat_compile_with_backtrace source)
  if(REMAT_HAS_BACKTRACE)
    execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=include
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS REMAT_HAS_BACKTRACE
      COMPILE_OPTIONS "-idirafter;${folder}" SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

function(remat_link_backtrace target)
  if(REMAT_HAS_BACKTRACE)
    target_link_libraries(${target} PRIVATE backtrace)
    target_link_options(${target} PRIVATE LINKER:--exclude-libs,libbacktrace.a)
  endif()
endfunction()
