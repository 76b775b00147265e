# SPDX-License-Identifier: BSD-3-Clause

# Suites on CUDA tensors. They have the label cuda and run on the machine's GPU, or on the stand-in where there is none: see
# tests/cuda_stand_in/README.md.
#
# Sets REMAT_HAS_CUDA_TESTS. If it is OFF, the functions below add nothing, and the configure run has said why.

# Sets `out` to the reason why there are no suites on CUDA tensors; empty if there are some. Sets REMAT_CUDA_HEADERS.
function(_remat_find_cuda_reason out)
  set(${out} "" PARENT_SCOPE)
  if(REMAT_SANITIZE)
    set(${out} "the sanitizers' libraries and the stand-in both ask to be loaded first" PARENT_SCOPE)
    return()
  endif()
  if(NOT EXISTS "${LibTorch_LIBRARY_DIR}/libtorch_cuda.so")
    set(${out} "expected libtorch_cuda.so in ${LibTorch_LIBRARY_DIR}, got a LibTorch without CUDA" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${CMAKE_NM}" -D --undefined-only "${LibTorch_LIBRARY_DIR}/libc10_cuda.so"
    OUTPUT_VARIABLE symbols ERROR_QUIET)
  if(NOT symbols MATCHES " cudaMalloc@libcudart\\.so\\.13")
    string(REGEX MATCH "libcudart\\.so\\.[0-9]+" got "${symbols}")
    set(${out} "expected a LibTorch for CUDA 13, got one that asks for ${got}" PARENT_SCOPE)
    return()
  endif()
  find_path(REMAT_CUDA_HEADERS cublasLt.h PATHS "${LibTorch_LAST_ROOT}/../nvidia/cu13/include" /usr/local/cuda-13/include
    /usr/local/cuda/include NO_DEFAULT_PATH DOC "Headers of CUDA 13")
  if(NOT REMAT_CUDA_HEADERS OR NOT EXISTS "${REMAT_CUDA_HEADERS}/cuda_runtime_api.h")
    set(${out} "expected CUDA's headers in LibTorch's wheel or REMAT_CUDA_HEADERS, got none" PARENT_SCOPE)
  endif()
endfunction()

set(REMAT_HAS_CUDA_TESTS ON)
_remat_find_cuda_reason(reason)
if(reason)
  set(REMAT_HAS_CUDA_TESTS OFF)
  message(NOTICE "[cuda] ${reason}: the suites on CUDA tensors are left out.")
endif()
set(REMAT_CUDA_STAND_IN "${CMAKE_CURRENT_BINARY_DIR}/cuda_stand_in")

# Adds the properties that all tests with the label cuda have; `order` may be empty.
function(_remat_mark_cuda_test name order)
  set_property(TEST ${name} APPEND PROPERTY LABELS cuda)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT REMAT_TEST_DEVICE=cuda)
  if(order)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT CUDA_STAND_IN_ORDER=${order})
  endif()
endfunction()

# remat_add_cuda_run(backend.checkpoint BUDGET_S 20 [ORDER random] [ARGS ~[cpu] ...]): the suite once more with
# REMAT_TEST_DEVICE=cuda, as test backend.checkpoint.cuda or backend.checkpoint.cuda.random. ORDER is an order of the stand-in's
# streams, without effect on a GPU; ARGS go to Catch2.
function(remat_add_cuda_run suite)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "BUDGET_S;ORDER" "ARGS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_BUDGET_S)
    message(FATAL_ERROR "[remat_add_cuda_run ${suite}] expected BUDGET_S seconds, ORDER and ARGS, got ${ARGN}")
  endif()
  if(NOT REMAT_HAS_CUDA_TESTS)
    return()
  endif()
  set(name ${suite}.cuda)
  if(arg_ORDER)
    string(APPEND name ".${arg_ORDER}")
  endif()
  string(REPLACE "." "_" target "${suite}_suite")
  remat_add_test(${name} BUDGET_S ${arg_BUDGET_S}
    COMMAND "${REMAT_CUDA_STAND_IN}/run.sh" "$<TARGET_FILE:${target}>" --durations yes ${arg_ARGS})
  get_test_property(${suite} ENVIRONMENT inherited)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${inherited}")
  _remat_mark_cuda_test(${name} "${arg_ORDER}")
endfunction()

# remat_add_cuda_python_suite(python.checkpoint.cuda BUDGET_S 20 [ORDER random] FILES test_thing.py ... [ARGS -k thing]
# [ENVIRONMENT A=B ...]): one ctest test, which runs these files on CUDA tensors. ARGS go to pytest.
function(remat_add_cuda_python_suite name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "BUDGET_S;ORDER" "FILES;ARGS;ENVIRONMENT")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_BUDGET_S OR NOT arg_FILES)
    message(FATAL_ERROR "[remat_add_cuda_python_suite ${name}] expected BUDGET_S seconds and FILES, got ${ARGN}")
  endif()
  set_property(GLOBAL APPEND PROPERTY REMAT_PYTHON_TESTS ${arg_FILES})
  if(NOT REMAT_HAS_CUDA_TESTS OR NOT REMAT_HAS_PYTEST)
    return()
  endif()
  set(tests "${PROJECT_SOURCE_DIR}/python/tests")
  list(TRANSFORM arg_FILES PREPEND "${tests}/")
  remat_add_test(${name} BUDGET_S ${arg_BUDGET_S} COMMAND "${REMAT_CUDA_STAND_IN}/run.sh"
    "${REMAT_PYTHON}" -m pytest -q -p no:cacheprovider -p cuda_default ${arg_ARGS} ${arg_FILES})
  set(path "${REMAT_PYTHON_PATH}:${tests}:${PROJECT_SOURCE_DIR}/tests/cuda_stand_in")
  set_tests_properties(${name} PROPERTIES LABELS python WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    ENVIRONMENT "PYTHONPATH=${path};PYTHONDONTWRITEBYTECODE=1;OMP_NUM_THREADS=1;${arg_ENVIRONMENT}")
  _remat_mark_cuda_test(${name} "${arg_ORDER}")
endfunction()
