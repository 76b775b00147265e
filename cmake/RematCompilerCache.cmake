# SPDX-License-Identifier: BSD-3-Clause

# Uses ccache if it is installed, and limits the number of parallel compile jobs by the machine's memory.

find_program(REMAT_CCACHE ccache DOC "ccache, used when found")
if(REMAT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is that of ccache's manual for precompiled headers. Paths count relative to the source folder, so that another
  # clone, and the test that builds remat as a part of another project, reuse the cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    "${REMAT_CCACHE}")
endif()

# A file that includes torch/torch.h takes up to 2 GiB to compile.
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT jobs QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR jobs_in_memory "${memory_mib} / 2048")
if(jobs_in_memory LESS jobs)
  set(jobs ${jobs_in_memory})
endif()
if(jobs LESS 1)
  set(jobs 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS remat_compile=${jobs})
set(CMAKE_JOB_POOL_COMPILE remat_compile)
