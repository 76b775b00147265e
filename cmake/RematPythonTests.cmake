# SPDX-License-Identifier: BSD-3-Clause

# Suites of pytest that run on the package in the build folder.

set(REMAT_PYTHON_TOOLS "${PROJECT_SOURCE_DIR}/build/$ENV{REMAT_BUILD_IN}python_tools" CACHE PATH "Where setup.sh puts pytest and others")
set(REMAT_PYTHON_PATH "${PROJECT_BINARY_DIR}/python:${REMAT_PYTHON_TOOLS}")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env "PYTHONPATH=${REMAT_PYTHON_PATH}" "${REMAT_PYTHON}" -c "import expecttest, hypothesis, pytest"
  OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE status)
set(REMAT_HAS_PYTEST ON)
if(NOT status EQUAL 0)
  set(REMAT_HAS_PYTEST OFF)
  message(NOTICE "[python] expected pytest, hypothesis and expecttest in ${REMAT_PYTHON} or build/python_tools, got none: the Python "
    "tests are left out. Run ./setup.sh none.")
endif()

# Python is not linked with the sanitizer, so the sanitizer's library must be loaded first, followed by libstdc++: at its start
# the sanitizer looks up the function there that throws. Leaks are not reported, since Python does not free all its memory.
set(REMAT_PYTHON_SANITIZER "")
if(REMAT_SANITIZE MATCHES address)
  foreach(library libasan.so libstdc++.so)
    execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=${library}
      OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(APPEND REMAT_PYTHON_SANITIZER "${path} ")
  endforeach()
  string(STRIP "${REMAT_PYTHON_SANITIZER}" REMAT_PYTHON_SANITIZER)
  set(REMAT_PYTHON_SANITIZER "LD_PRELOAD=${REMAT_PYTHON_SANITIZER}"
    "ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0" "UBSAN_OPTIONS=print_stacktrace=1")
endif()

set(REMAT_MODEL_LIBRARIES accelerate peft pytorch_lightning timm torchvision transformers)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env "PYTHONPATH=${REMAT_PYTHON_PATH}" "${REMAT_PYTHON}" -c
    "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))" ${REMAT_MODEL_LIBRARIES}
  OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE status)
set(REMAT_HAS_MODEL_LIBRARIES ON)
if(NOT status EQUAL 0)
  set(REMAT_HAS_MODEL_LIBRARIES OFF)
  message(NOTICE "[python] expected ${REMAT_MODEL_LIBRARIES} in ${REMAT_PYTHON} or build/python_tools, got not all of them: "
    "the suites that train their models are left out. Run ./setup.sh none.")
endif()

# remat_add_python_suite(python.thing BUDGET_S 20 FILES test_thing.py [MODEL_LIBRARIES]): one ctest test. With
# MODEL_LIBRARIES the suite needs the packages of python/tests/models/requirements.txt.
function(remat_add_python_suite name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "MODEL_LIBRARIES" "BUDGET_S" "FILES;ENVIRONMENT")
  set_property(GLOBAL APPEND PROPERTY REMAT_PYTHON_TESTS ${arg_FILES})
  if(NOT REMAT_HAS_PYTEST OR (arg_MODEL_LIBRARIES AND NOT REMAT_HAS_MODEL_LIBRARIES))
    return()
  endif()
  list(TRANSFORM arg_FILES PREPEND "${PROJECT_SOURCE_DIR}/python/tests/")
  remat_add_test(${name} BUDGET_S ${arg_BUDGET_S} COMMAND "${REMAT_PYTHON}" -m pytest -q -p no:cacheprovider ${arg_FILES})
  set_tests_properties(${name} PROPERTIES LABELS python WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    ENVIRONMENT "PYTHONPATH=${REMAT_PYTHON_PATH};PYTHONDONTWRITEBYTECODE=1;OMP_NUM_THREADS=1;${REMAT_PYTHON_SANITIZER};${arg_ENVIRONMENT}")
endfunction()

# Stops on a test file that no suite runs.
function(remat_check_python_suites)
  get_property(listed GLOBAL PROPERTY REMAT_PYTHON_TESTS)
  file(GLOB_RECURSE present CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/python/tests"
    "${PROJECT_SOURCE_DIR}/python/tests/test_*.py")
  list(REMOVE_ITEM present ${listed})
  if(present)
    message(FATAL_ERROR "[python] no suite runs these: ${present}. List them in tests/CMakeLists.txt.")
  endif()
endfunction()
