# SPDX-License-Identifier: BSD-3-Clause

# Finds the Python to which the found LibTorch belongs, and its headers.
#
# Sets REMAT_PYTHON (the interpreter; empty if there is none), REMAT_PYTHON_INCLUDE, REMAT_PYTHON_SUFFIX and, when there is
# none, REMAT_PYTHON_MISSING, which says why.
#
# remat_python_suffix(include out): sets `out` to the file suffix of extension modules for the Python with headers in `include`.

set(REMAT_PYTHON "")
set(REMAT_PYTHON_MISSING "LibTorch in ${LibTorch_LAST_ROOT} has no libtorch_python.so: expected torch from a wheel")
if(EXISTS "${LibTorch_LIBRARY_DIR}/libtorch_python.so")
  # Candidates in order: pip's interpreter, LibTorch_PYTHON, the interpreter of the environment that has torch, the active one.
  find_program(_python_on_path NAMES python3 python NO_CACHE)
  set(_candidates "${Python_EXECUTABLE}" "${LibTorch_PYTHON}" "${LibTorch_LAST_ROOT}/../../../../bin/python3"
    "${_python_on_path}")
  set(_script [=[
import os, sys, sysconfig
keys = ("purelib", "platlib")
base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
places = sys.path + [sysconfig.get_path(k) for k in keys] + [sysconfig.get_path(k, vars=base) for k in keys]
same = any(os.path.realpath(os.path.join(p, "torch")) == os.path.realpath(sys.argv[1]) for p in places if p)
include = sysconfig.get_path("include")
print(int(same), include, sysconfig.get_config_var("EXT_SUFFIX"), sep=";", end="")
]=])
  set(REMAT_PYTHON_MISSING "no Python has the torch in ${LibTorch_LAST_ROOT}: set LibTorch_PYTHON to the one that does")
  foreach(_candidate IN LISTS _candidates)
    if(REMAT_PYTHON OR NOT EXISTS "${_candidate}")
      continue()
    endif()
    execute_process(COMMAND "${_candidate}" -c "${_script}" "${LibTorch_LAST_ROOT}"
      OUTPUT_VARIABLE _probe ERROR_QUIET RESULT_VARIABLE _status)
    if(NOT _status EQUAL 0 OR NOT _probe MATCHES "^1;(.*);(.*)$")
      continue()
    endif()
    if(NOT REMAT_PYTHON_INCLUDES AND NOT EXISTS "${CMAKE_MATCH_1}/Python.h")
      set(REMAT_PYTHON_MISSING "${_candidate} has no headers: expected ${CMAKE_MATCH_1}/Python.h. Run apt-get install python3-dev")
      continue()
    endif()
    set(REMAT_PYTHON "${_candidate}")
    set(REMAT_PYTHON_INCLUDE "${CMAKE_MATCH_1}")
    set(REMAT_PYTHON_SUFFIX "${CMAKE_MATCH_2}")
  endforeach()
endif()

function(remat_python_suffix include out)
  if(include STREQUAL REMAT_PYTHON_INCLUDE)
    set(${out} "${REMAT_PYTHON_SUFFIX}" PARENT_SCOPE)
    return()
  endif()
  set(lines "")
  if(EXISTS "${include}/patchlevel.h")
    file(STRINGS "${include}/patchlevel.h" lines REGEX "define PY_(MAJOR|MINOR)_VERSION")
  endif()
  if(NOT "${lines}" MATCHES "MAJOR_VERSION[ \t]+([0-9]+).*MINOR_VERSION[ \t]+([0-9]+)")
    message(FATAL_ERROR "[python] REMAT_PYTHON_INCLUDES: expected folders with a Python's headers, got ${include}")
  endif()
  set(${out} ".cpython-${CMAKE_MATCH_1}${CMAKE_MATCH_2}-${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.so" PARENT_SCOPE)
endfunction()
