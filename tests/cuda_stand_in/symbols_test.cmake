# SPDX-License-Identifier: BSD-3-Clause

# cmake -DNM=nm -DLIBRARIES=a.so,b.so -P symbols_test.cmake -- STAND_IN...: fails if the libraries import a function from CUDA's
# runtime, driver, compiler or cuBLAS that none of the stand-ins defines.

cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" LIBRARIES "${LIBRARIES}")
set(stand_ins "")
set(after_dashes FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(after_dashes)
    list(APPEND stand_ins "${CMAKE_ARGV${i}}")
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(after_dashes TRUE)
  endif()
endforeach()

execute_process(COMMAND "${NM}" -D --defined-only ${stand_ins} OUTPUT_VARIABLE defined COMMAND_ERROR_IS_FATAL ANY)
# Functions of the driver (cu...) have no symbol version, and neither have those of cuFile, whose names begin with cu, too.
set(import " (cu[A-EG-Z][A-Za-z0-9_]*|cuF[a-hj-z][A-Za-z0-9_]*|[A-Za-z0-9_]+@(libcudart|libnvrtc|libcublas|libcublasLt)\\.so\\.[0-9]+)\n")
set(count 0)
set(missing "")
foreach(library IN LISTS LIBRARIES)
  execute_process(COMMAND "${NM}" -D --undefined-only "${library}" OUTPUT_VARIABLE undefined COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "${import}" imports "${undefined}")
  foreach(symbol IN LISTS imports)
    string(STRIP "${symbol}" symbol)
    string(REGEX REPLACE "@.*" "" name "${symbol}")
    math(EXPR count "${count} + 1")
    if(NOT defined MATCHES " [TWV] ${name}[@\n]")
      string(APPEND missing "\n  ${library}: ${symbol}")
    endif()
  endforeach()
endforeach()

if(count LESS 100)
  message(FATAL_ERROR "[symbols] expected libraries that use CUDA, got ${count} imports from it. Has LibTorch changed its libraries?")
elseif(missing)
  message(FATAL_ERROR "[symbols] expected a definition of every function that LibTorch imports from CUDA, got none of these:${missing}\n"
    "Define them in tests/cuda_stand_in.")
endif()
message("[symbols] ${count} imports, all defined")
