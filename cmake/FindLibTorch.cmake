# SPDX-License-Identifier: BSD-3-Clause

# Finds LibTorch by path, without its own TorchConfig (which demands a CUDA toolkit), and defines targets for it.
#
#   find_package(LibTorch MODULE REQUIRED)     targets remat_libtorch::{c10,torch_cpu,torch,api}
#   cmake -P cmake/FindLibTorch.cmake          prints "libtorch: <root>" or "libtorch: none"
#
# Places that are searched, in this order. A LibTorch of another version is an error in 1 and 2, and passed over in the others:
#   1. LibTorch_ROOT (variable or environment): the folder with include/ and lib/
#   2. Torch_DIR (variable or environment), CMAKE_PREFIX_PATH (variable or environment)
#   3. what the last configure found
#   4. the torch of the active Python: LibTorch_PYTHON, else python3 on PATH
#   5. the folders in LibTorch_FALLBACK_ROOTS, then build/venv and build/versions/<major.minor>/venv beside cmake/
#
# Sets LibTorch_FOUND, LibTorch_VERSION, LibTorch_INCLUDE_DIR, LibTorch_LIBRARY_DIR. REMAT_TORCH_VERSION (variable or
# environment) is the major.minor to accept: headers and library of another minor version do not fit together. Empty means
# 2.11. "any" accepts each of REMAT_TORCH_VERSIONS, and is then set to the version found. REMAT_TORCH_VERSIONS are all versions
# that remat supports; in RematConfig.cmake, those for which remat is installed.

if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.25)
endif()
if(NOT REMAT_TORCH_VERSIONS)
  set(REMAT_TORCH_VERSIONS 2.10 2.11 2.12 2.13 2.14 2.15)
endif()
if(NOT REMAT_TORCH_VERSION)
  set(REMAT_TORCH_VERSION "$ENV{REMAT_TORCH_VERSION}")
endif()
if(NOT REMAT_TORCH_VERSION)
  set(REMAT_TORCH_VERSION 2.11)
endif()
list(JOIN REMAT_TORCH_VERSIONS ", " _libtorch_supported)
set(_libtorch_wanted "${REMAT_TORCH_VERSION}")
set(_libtorch_pip "torch==${REMAT_TORCH_VERSION}.*")
if(REMAT_TORCH_VERSION STREQUAL "any")
  set(_libtorch_wanted "${_libtorch_supported}")
  list(GET REMAT_TORCH_VERSIONS 0 _libtorch_first)
  if("2.11" IN_LIST REMAT_TORCH_VERSIONS)
    set(_libtorch_first 2.11)
  endif()
  set(_libtorch_pip "torch==${_libtorch_first}.*")
elseif(NOT REMAT_TORCH_VERSION IN_LIST REMAT_TORCH_VERSIONS)
  message(FATAL_ERROR "[LibTorch] REMAT_TORCH_VERSION: expected one of ${_libtorch_supported}, got ${REMAT_TORCH_VERSION}. "
    "Set it to the major.minor of your LibTorch, and install one of these if it is another.")
endif()

# Sets `out` to the version of the LibTorch in `root`, as 2.11.0; empty if there is none.
function(_libtorch_version root out)
  set(${out} "" PARENT_SCOPE)
  set(header "${root}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${header}")
    set(header "${root}/include/torch/csrc/api/include/torch/version.h")
  endif()
  if(NOT EXISTS "${header}" OR NOT EXISTS "${root}/lib/libtorch_cpu.so")
    return()
  endif()
  file(STRINGS "${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  if("${lines}" MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
    set(${out} "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}" PARENT_SCOPE)
  endif()
endfunction()

# Sets `out` to TRUE if `version` has the major.minor of REMAT_TORCH_VERSION.
function(_libtorch_fits version out)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
  if(minor STREQUAL REMAT_TORCH_VERSION OR (REMAT_TORCH_VERSION STREQUAL "any" AND minor IN_LIST REMAT_TORCH_VERSIONS))
    set(${out} TRUE PARENT_SCOPE)
  else()
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Sets `out_root` to the root that the user has named, and `out_origin` to the variable that names it, empty if none does.
function(_libtorch_named out_root out_origin)
  set(${out_origin} "" PARENT_SCOPE)
  set(up3 "/[^/]+/[^/]+/[^/]+/*$")
  foreach(candidate IN ITEMS "${LibTorch_ROOT}" "$ENV{LibTorch_ROOT}")
    if(candidate)
      cmake_path(ABSOLUTE_PATH candidate NORMALIZE)
      set(${out_root} "${candidate}" PARENT_SCOPE)
      set(${out_origin} "LibTorch_ROOT" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  foreach(candidate IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(candidate AND NOT candidate MATCHES "-NOTFOUND$")
      cmake_path(ABSOLUTE_PATH candidate NORMALIZE)
      # Torch_DIR is <root>/share/cmake/Torch by CMake's convention; people also set it to <root>.
      if(EXISTS "${candidate}/TorchConfig.cmake")
        string(REGEX REPLACE "${up3}" "" candidate "${candidate}")
      endif()
      set(${out_root} "${candidate}" PARENT_SCOPE)
      set(${out_origin} "Torch_DIR" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  find_file(config TorchConfig.cmake PATH_SUFFIXES share/cmake/Torch Torch cmake/Torch NO_CACHE)
  if(config)
    cmake_path(GET config PARENT_PATH config)
    string(REGEX REPLACE "${up3}" "" config "${config}")
    set(${out_root} "${config}" PARENT_SCOPE)
    set(${out_origin} "CMAKE_PREFIX_PATH" PARENT_SCOPE)
  endif()
endfunction()

# Sets `out` to the folder of the active Python's torch, without importing torch, which takes seconds.
function(_libtorch_of_python out)
  set(${out} "" PARENT_SCOPE)
  if(NOT LibTorch_PYTHON)
    find_program(LibTorch_PYTHON NAMES python3 python NO_CACHE)
  endif()
  if(NOT LibTorch_PYTHON)
    return()
  endif()
  # pip hides torch from import while it builds a package, but torch is still in the folder of packages.
  set(script [=[
import importlib.util, os, sys, sysconfig
spec = importlib.util.find_spec("torch")
base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
places = [sysconfig.get_path(k, vars=v) for v in ({}, base) for k in ("purelib", "platlib")]
found = [spec.submodule_search_locations[0]] if spec else [os.path.join(p, "torch") for p in places]
print(next((f for f in found if os.path.isdir(f)), ""), end="")
]=])
  execute_process(COMMAND "${LibTorch_PYTHON}" -c "${script}" OUTPUT_VARIABLE root ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    set(${out} "${root}" PARENT_SCOPE)
  endif()
endfunction()

# Sets _root and _version, which is empty if there is no LibTorch, and _passed_over, which lists the candidates that did not fit.
function(_libtorch_search)
  set(_root "" PARENT_SCOPE)
  set(_version "" PARENT_SCOPE)
  set(_passed_over "" PARENT_SCOPE)

  _libtorch_named(named origin)
  if(origin)
    _libtorch_version("${named}" version)
    if(NOT version)
      message(FATAL_ERROR "[LibTorch] ${origin} leads to ${named}: expected include/torch/ and lib/libtorch_cpu.so "
        "of LibTorch ${_libtorch_wanted}, got no LibTorch there. Correct or unset ${origin}.")
    endif()
    _libtorch_fits("${version}" fits)
    if(NOT fits)
      message(FATAL_ERROR "[LibTorch] ${origin} leads to ${named}: expected LibTorch ${_libtorch_wanted}, got "
        "LibTorch ${version}. remat is built for one minor version: set REMAT_TORCH_VERSION to another of "
        "${_libtorch_supported}, or point ${origin} to LibTorch ${_libtorch_wanted}.")
    endif()
    set(_root "${named}" PARENT_SCOPE)
    set(_version "${version}" PARENT_SCOPE)
    return()
  endif()

  set(passed_over "")
  cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH beside)
  file(GLOB in_venv "${beside}/build/venv/lib/python3*/site-packages/torch"
    "${beside}/build/versions/${REMAT_TORCH_VERSION}/venv/lib/python3*/site-packages/torch")
  foreach(candidate IN ITEMS "${LibTorch_LAST_ROOT}" PYTHON ${LibTorch_FALLBACK_ROOTS} ${in_venv})
    if(candidate STREQUAL "PYTHON")
      _libtorch_of_python(candidate)
    endif()
    if(NOT candidate)
      continue()
    endif()
    _libtorch_version("${candidate}" version)
    _libtorch_fits("${version}" fits)
    if(fits)
      set(_root "${candidate}" PARENT_SCOPE)
      set(_version "${version}" PARENT_SCOPE)
      return()
    elseif(version)
      string(APPEND passed_over " LibTorch ${version} in ${candidate} was passed over.")
    endif()
  endforeach()
  set(_passed_over "${passed_over}" PARENT_SCOPE)
endfunction()

_libtorch_search()

if(CMAKE_SCRIPT_MODE_FILE)
  if(_version)
    message(STATUS "libtorch: ${_root}")
  else()
    message(STATUS "libtorch: none${_passed_over}")
  endif()
  return()
endif()

set(LibTorch_VERSION "${_version}")
if(_version AND REMAT_TORCH_VERSION STREQUAL "any")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" REMAT_TORCH_VERSION "${_version}")
endif()
set(LibTorch_LAST_ROOT "${_root}" CACHE INTERNAL "Where LibTorch was found")
set(LibTorch_INCLUDE_DIR "")
set(LibTorch_LIBRARY_DIR "")
if(_version)
  set(LibTorch_INCLUDE_DIR "${_root}/include")
  set(LibTorch_LIBRARY_DIR "${_root}/lib")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_LIBRARY_DIR LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "expected LibTorch ${_libtorch_wanted}, got none.${_passed_over} Run ./setup.sh, or pip install '${_libtorch_pip}' into the active Python, or set Torch_DIR or CMAKE_PREFIX_PATH.")

if(LibTorch_FOUND AND NOT TARGET remat_libtorch::torch_cpu)
  # A CUDA build of LibTorch needs libraries that the wheel keeps beside it. LibTorch finds them when loaded; the linker must be
  # given them, or told to ignore them.
  file(GLOB _libtorch_nvidia "${_root}/../nvidia/*/lib")
  set(_libtorch_link_options "LINKER:--allow-shlib-undefined")
  foreach(_dir IN LISTS _libtorch_nvidia ITEMS "${LibTorch_LIBRARY_DIR}")
    cmake_path(NORMAL_PATH _dir)
    list(APPEND _libtorch_link_options "LINKER:-rpath-link,${_dir}")
  endforeach()

  add_library(remat_libtorch::c10 SHARED IMPORTED)
  set_target_properties(remat_libtorch::c10 PROPERTIES
    IMPORTED_LOCATION "${LibTorch_LIBRARY_DIR}/libc10.so"
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR}"
    # LibTorch ships fmt's headers without its library.
    INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1
    INTERFACE_LINK_OPTIONS "${_libtorch_link_options}")

  add_library(remat_libtorch::torch_cpu SHARED IMPORTED)
  set_target_properties(remat_libtorch::torch_cpu PROPERTIES
    IMPORTED_LOCATION "${LibTorch_LIBRARY_DIR}/libtorch_cpu.so"
    INTERFACE_LINK_LIBRARIES remat_libtorch::c10)

  # The C++ frontend: torch/torch.h, torch::nn, torch::optim.
  add_library(remat_libtorch::api INTERFACE IMPORTED)
  set_target_properties(remat_libtorch::api PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES remat_libtorch::torch_cpu)

  # Every backend of this LibTorch, CUDA too. libtorch.so exports no symbols, so it must be linked by force.
  add_library(remat_libtorch::torch INTERFACE IMPORTED)
  set_target_properties(remat_libtorch::torch PROPERTIES
    INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--no-as-needed,${LibTorch_LIBRARY_DIR}/libtorch.so,--pop-state;remat_libtorch::api")
endif()
