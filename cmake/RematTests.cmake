# SPDX-License-Identifier: BSD-3-Clause

# Functions that declare suites, compile-failure tests and their budgets of CPU time.

set(REMAT_BUDGET_TOTAL_S 3800 CACHE STRING "CPU time for all suites together, in seconds")
# The scale is three, since the same code takes two to three times the CPU time on a slow shared machine.
set(REMAT_BUDGET_SCALE 3 CACHE STRING "A test fails that takes its budget of CPU time this many times")

# remat_add_test(name BUDGET_S 20 COMMAND program arguments...): a ctest test that is judged by its CPU time, which other work on
# the machine does not change. The limit on wall time only ends a test that hangs.
function(remat_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "BUDGET_S" "COMMAND")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_BUDGET_S)
    message(FATAL_ERROR "[remat_add_test ${name}] expected BUDGET_S seconds and COMMAND, got ${ARGN}")
  endif()
  math(EXPR limit "${arg_BUDGET_S} * ${REMAT_BUDGET_SCALE}")
  math(EXPR hang "${limit} * 10 + 600")
  add_test(NAME ${name}
    COMMAND "${PROJECT_SOURCE_DIR}/tests/within_budget.sh" ${name} ${arg_BUDGET_S} ${limit} -- ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${hang})
  set_property(GLOBAL APPEND PROPERTY REMAT_BUDGETS "${name}:${arg_BUDGET_S}")
endfunction()

# Lists every test's budget in verbose mode; more than REMAT_BUDGET_TOTAL_S together is an error.
function(remat_print_budgets)
  get_property(budgets GLOBAL PROPERTY REMAT_BUDGETS)
  set(total 0)
  set(table "")
  foreach(entry IN LISTS budgets)
    string(REPLACE ":" ";" entry "${entry}")
    list(GET entry 0 name)
    list(GET entry 1 seconds)
    math(EXPR total "${total} + ${seconds}")
    string(LENGTH "${seconds}" digits)
    math(EXPR pad "6 - ${digits}")
    string(REPEAT " " ${pad} pad)
    string(APPEND table "\n  ${pad}${seconds} s  ${name}")
  endforeach()
  message(VERBOSE "Budgets of CPU time:${table}")
  message(STATUS "Tests may take ${total} s of ${REMAT_BUDGET_TOTAL_S} s of CPU time; --log-level=VERBOSE lists them")
  if(total GREATER REMAT_BUDGET_TOTAL_S)
    message(FATAL_ERROR "[budgets] expected ${REMAT_BUDGET_TOTAL_S} s or less in all, got ${total} s. Shorten a suite.")
  endif()
endfunction()

# Tests spend their time in remat and LibTorch, so -O1 is enough for their own code, which then compiles in two thirds of the
# time.
set(test_options $<$<CONFIG:Release>:-O1>)

# Options and precompiled headers (torch/torch.h and Catch2) that all suites share.
add_library(remat_test_support OBJECT support/precompiled.cpp)
target_link_libraries(remat_test_support
  PUBLIC remat::remat remat_internals Catch2::Catch2WithMain remat_build_options)
target_include_directories(remat_test_support
  PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}")
target_compile_options(remat_test_support PRIVATE ${test_options})
target_precompile_headers(remat_test_support PRIVATE <torch/torch.h> support/catch.h)
set_target_properties(remat_test_support PROPERTIES PCH_WARN_INVALID ON)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache compares preprocessed text, which has neither comments nor the headers of a precompiled header that is there already.
  # GCC knows catch.h again by its whole text.
  set_target_properties(remat_test_support PROPERTIES CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;\
CCACHE_EXTRAFILES=${CMAKE_CURRENT_SOURCE_DIR}/support/catch.h;${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ccache needs to see which precompiled header was read.
  target_compile_options(remat_test_support PUBLIC -fpch-preprocess)
endif()

# Compiles `target` with the precompiled header of remat_test_support.
function(remat_reuse_precompiled target)
  target_compile_options(${target} PRIVATE ${test_options})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
  target_precompile_headers(${target} REUSE_FROM remat_test_support)
endfunction()

# The default device of a suite's tensors, and the listener that checks the CUDA stand-in after each test.
add_library(remat_test_device OBJECT support/cuda_listener.cpp support/default_device.cpp)
target_link_libraries(remat_test_device PRIVATE remat::remat Catch2::Catch2WithMain remat_build_options)
target_include_directories(remat_test_device PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
remat_reuse_precompiled(remat_test_device)
set_source_files_properties(support/cuda_listener.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)

# remat_add_test_objects(matrix_parts SOURCES matrix/cell.cpp ...): sources of several suites, compiled once; a suite LINKS them.
function(remat_add_test_objects target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  remat_check_listed("objects ${target}" ${arg_SOURCES})
  add_library(${target} OBJECT ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE remat::remat remat_internals Catch2::Catch2WithMain remat_build_options)
  remat_reuse_precompiled(${target})
  remat_unite(${target} 8)
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}")
endfunction()

# remat_add_suite(tape.replay BUDGET_S 20 [CUDA] [FUZZ] [NO_TORCH] [CORES n] SOURCES tape/replay_test.cpp [LABELS ...] [LINKS ...])
# One Catch2 program and one ctest test of that name. CUDA: has [cuda] tests. FUZZ: the campaign runs its [fuzz] tests
# with many seeds. NO_TORCH: links nothing but LINKS, and sees no header of LibTorch. CORES: threads for LibTorch's own
# loops, default 1.
function(remat_add_suite name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CUDA;FUZZ;NO_TORCH" "BUDGET_S;CORES" "SOURCES;LABELS;LINKS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_BUDGET_S)
    message(FATAL_ERROR "[remat_add_suite ${name}] expected BUDGET_S seconds and SOURCES, got ${ARGN}")
  endif()
  if(NOT arg_CORES)
    set(arg_CORES 1)
  endif()
  set(cuda "")
  if(arg_CUDA)
    set(cuda CUDA)
    list(APPEND arg_LABELS cuda)
  endif()
  if(arg_FUZZ)
    list(APPEND arg_LABELS fuzz)
    set_property(GLOBAL APPEND PROPERTY REMAT_FUZZ_SUITES ${name})
  endif()
  string(REPLACE "." "_" target "${name}_suite")
  if(arg_NO_TORCH)
    remat_add_plain_program(${target} SOURCES ${arg_SOURCES} LINKS Catch2::Catch2WithMain ${arg_LINKS})
  else()
    remat_add_program(${target} ${cuda} SOURCES ${arg_SOURCES}
      LINKS remat_internals remat_test_device Catch2::Catch2WithMain ${arg_LINKS})
    remat_reuse_precompiled(${target})
  endif()
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}")
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name})
  remat_unite(${target} 8)

  remat_add_test(${name} BUDGET_S ${arg_BUDGET_S} COMMAND "$<TARGET_FILE:${target}>" --durations yes)
  set_tests_properties(${name} PROPERTIES
    LABELS "${arg_LABELS}" PROCESSORS ${arg_CORES} ENVIRONMENT "${REMAT_TEST_ENVIRONMENT};OMP_NUM_THREADS=${arg_CORES}")
  set_property(GLOBAL APPEND PROPERTY REMAT_SUITE_SOURCES ${arg_SOURCES})
endfunction()

# remat_add_suite_run(backend.errors private_use_3 "NAME=VALUE"): the suite once more, in another environment.
function(remat_add_suite_run suite name environment)
  string(REPLACE "." "_" target "${suite}_suite")
  get_property(budgets GLOBAL PROPERTY REMAT_BUDGETS)
  foreach(entry IN LISTS budgets)
    if(entry MATCHES "^${suite}:([0-9]+)$")
      remat_add_test(${suite}.${name} BUDGET_S ${CMAKE_MATCH_1} COMMAND "$<TARGET_FILE:${target}>" --durations yes)
    endif()
  endforeach()
  get_test_property(${suite} ENVIRONMENT inherited)
  set_tests_properties(${suite}.${name} PROPERTIES ENVIRONMENT "${inherited};${environment}")
endfunction()

# remat_add_failing_command(name 5 "regex" program arguments...): a ctest test with that budget, which passes when the command
# fails and its output matches `regex`.
function(remat_add_failing_command name budget_s regex)
  remat_add_test(${name} BUDGET_S ${budget_s} COMMAND "${CMAKE_COMMAND}" "-DREGEX=${regex}"
    -P "${PROJECT_SOURCE_DIR}/cmake/ExpectFailure.cmake" -- ${ARGN})
endfunction()

# remat_add_compile_fail_test(name compile_fail/file.cpp "regex"): passes when the compiler refuses the file with output that
# matches `regex`.
function(remat_add_compile_fail_test name file regex)
  remat_check_listed("compile failure ${name}" ${file})
  string(REPLACE "." "_" target "${name}_compile_fail")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${file})
  target_link_libraries(${target} PRIVATE remat::remat)
  # A response file: runs the compiler with this target's options, without the build tool.
  set(includes "$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>")
  set(definitions "$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>")
  set(arguments "${CMAKE_CURRENT_BINARY_DIR}/${target}.rsp")
  file(GENERATE OUTPUT "${arguments}" CONTENT
    "-std=c++20\n-fsyntax-only\n$<$<BOOL:${includes}>:-isystem\"$<JOIN:${includes},\"\n-isystem\">\"\n>$<$<BOOL:${definitions}>:-D$<JOIN:${definitions},\n-D>\n>"
    TARGET ${target})
  remat_add_failing_command(${name} 10 "${regex}"
    "${CMAKE_CXX_COMPILER}" "@${arguments}" "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  set_tests_properties(${name} PROPERTIES LABELS compile_fail)
  set_property(GLOBAL APPEND PROPERTY REMAT_SUITE_SOURCES ${file})
endfunction()
