# SPDX-License-Identifier: BSD-3-Clause

# Configures, builds and runs the consumer project against remat, in the WAY given: install or subdirectory.

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT RESULT_VARIABLE status)
  if(NOT status STREQUAL "0")
    message(FATAL_ERROR "[consumer.${WAY}] failed (${status}): ${ARGN}")
  endif()
endfunction()

# Lies beside remat's build folder and as deep, so that the compiler cache recognises the sources.
set(work "${REMAT_BINARY_DIR}-consumer-${WAY}")
set(prefix "${work}-prefix")
file(REMOVE_RECURSE "${work}" "${prefix}")
set(arguments
  -G Ninja "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DLibTorch_ROOT=${LIBTORCH_ROOT}"
  "-DBUILD_SHARED_LIBS=${SHARED}")

if(WAY STREQUAL "install")
  run("${CMAKE_COMMAND}" --install "${REMAT_BINARY_DIR}" --prefix "${prefix}")
  # Imitates an install of remat for another LibTorch, which must not be taken.
  file(GLOB config "${prefix}/lib*/cmake/Remat" "${prefix}/lib/*/cmake/Remat")
  foreach(file IN ITEMS RematCompiledFor RematTargets)
    file(WRITE "${config}/torch-2.99/${file}.cmake" "if(\"${file}\" STREQUAL \"RematTargets\")\n  message(FATAL_ERROR wrong)\nendif()\n")
  endforeach()
  list(APPEND arguments "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF")
else()
  list(APPEND arguments "-DCONSUMER_REMAT_SOURCE=${REMAT_SOURCE_DIR}" "-DREMAT_TORCH_VERSION=${TORCH_VERSION}"
    "-DREMAT_WERROR=${WERROR}")
endif()

# The launcher is passed by the environment: as a list it would not survive the command line.
if(LAUNCHER)
  set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")
endif()
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${work}" ${arguments})
run("${CMAKE_COMMAND}" --build "${work}")
run("${work}/consumer")
