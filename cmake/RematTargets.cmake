# SPDX-License-Identifier: BSD-3-Clause

# How every target of the project is made: compile options, modules, programs.

# What all our code is compiled with; nothing here reaches those who link remat.
add_library(remat_build_options INTERFACE)
target_compile_features(remat_build_options INTERFACE cxx_std_20)
target_compile_options(remat_build_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual -Wunused -Wmissing-declarations
  # g++ 12 warns of std::string's own operator+ (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
if(REMAT_WERROR)
  target_compile_options(remat_build_options INTERFACE -Werror)
endif()
if(REMAT_SANITIZE)
  target_compile_options(remat_build_options INTERFACE
    -O1 -g1 -fsanitize=${REMAT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # Wrong too often in instrumented code.
    -Wno-maybe-uninitialized)
  target_link_options(remat_build_options INTERFACE -fsanitize=${REMAT_SANITIZE})
endif()

# remat_unite(target n) compiles n sources of it as one.
#
# Note [Unity builds]
# Most of the time of a file goes into reading LibTorch's headers, so some files are read as one. They share what is in
# unnamed namespaces then, which must have different names within a target. The presets dev and tidy compile each file alone,
# which shows an #include that is missing.
function(remat_unite target batch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${REMAT_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# Stops unless exactly the sources of this folder are in `listed`: a file that nobody compiles is a test that never runs.
function(remat_check_listed what)
  set(listed ${ARGN})
  list(TRANSFORM listed PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  foreach(file IN LISTS listed)
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "[${what}] listed but absent: ${file}. Write it or take it off ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt.")
    endif()
  endforeach()
  if(NOT ARGN)
    message(FATAL_ERROR "[${what}] has no sources. List them in ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt.")
  endif()
endfunction()

function(remat_check_all_listed)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "IN;LISTED;PATTERNS")
  list(TRANSFORM arg_PATTERNS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  file(GLOB_RECURSE present CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" ${arg_PATTERNS})
  list(REMOVE_ITEM present ${arg_LISTED})
  # A folder with a CMakeLists.txt of its own lists its own.
  foreach(file IN LISTS present)
    get_filename_component(folder "${file}" DIRECTORY)
    while(folder)
      if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt")
        list(REMOVE_ITEM present "${file}")
        break()
      endif()
      get_filename_component(folder "${folder}" DIRECTORY)
    endwhile()
  endforeach()
  if(present)
    message(FATAL_ERROR "[${CMAKE_CURRENT_SOURCE_DIR}] in the folder but not listed in CMakeLists.txt, so never compiled or "
      "installed: ${present}. List or remove them.")
  endif()
endfunction()

# remat_add_module(placeholder SOURCES a.cpp PRIVATE_HEADERS b.h HEADERS include/remat/placeholder/c.h USES modules... LINKS targets...)
# Target remat_placeholder_module: the objects of one folder, which see its headers and those of the modules that it USES, and
# of no other. remat_add_library() makes libraries of modules.
#
# remat_add_module(tape ROOMS tensor region... USES modules... LINKS targets...)
# One whose files are in folders, from the ground up, each with a CMakeLists.txt that calls remat_add_room().
function(remat_add_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PRIVATE_HEADERS;HEADERS;ROOMS;USES;LINKS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "[remat_add_module ${name}] unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target remat_${name}_module)
  add_library(${target} OBJECT)
  target_compile_features(${target} PUBLIC cxx_std_20)
  list(TRANSFORM arg_USES REPLACE "(.+)" "remat_\\1_module")
  target_link_libraries(${target} PUBLIC ${arg_USES} ${arg_LINKS} PRIVATE remat_build_options)
  remat_unite(${target} 12)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)

  set(module ${name})
  if(arg_ROOMS)
    remat_check_all_listed(PATTERNS *.cpp *.h LISTED "")
    foreach(room IN LISTS arg_ROOMS)
      add_subdirectory(${room})
    endforeach()
    remat_check_rooms(${target} ${arg_ROOMS})
  else()
    remat_add_files("module ${name}" "${arg_SOURCES}" "${arg_PRIVATE_HEADERS}" "${arg_HEADERS}")
  endif()
endfunction()

# remat_add_library(remat MODULES placeholder tape... [HEADERS_OF more modules...] LINKS targets...)
# Target remat, alias remat::remat and remat::MODULE of each module: a library of these modules, installed with their headers.
function(remat_add_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "MODULES;HEADERS_OF;LINKS")
  add_library(${target})
  foreach(module IN LISTS arg_MODULES)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:remat_${module}_module>)
    add_library(remat::${module} ALIAS ${target})
  endforeach()
  foreach(module IN LISTS arg_MODULES arg_HEADERS_OF)
    get_property(folders GLOBAL PROPERTY REMAT_HEADER_FOLDERS_${module})
    get_property(headers GLOBAL PROPERTY REMAT_HEADERS_${module})
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${folders} FILES ${headers})
  endforeach()
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${arg_LINKS} PRIVATE $<BUILD_INTERFACE:remat_build_options>)
  string(REGEX REPLACE "^remat_" "" exported "${target}")
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${exported}
    VERIFY_INTERFACE_HEADER_SETS ON
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    # A wheel's LibTorch lies where no loader looks, so installed libraries remember it.
    INSTALL_RPATH "$ORIGIN"
    INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${target} EXPORT RematTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()

# remat_add_room(SOURCES a.cpp PRIVATE_HEADERS b.h HEADERS include/remat/tape/c.h)
# In the folder of a room of a module: its files, which may include those of the rooms listed before theirs.
function(remat_add_room)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;PRIVATE_HEADERS;HEADERS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "[remat_add_room ${room}] unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  remat_add_files("room ${module}/${room}" "${arg_SOURCES}" "${arg_PRIVATE_HEADERS}" "${arg_HEADERS}")
  target_include_directories(remat_${module}_module PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
endfunction()

# Files of this folder for `module`: all that are here.
function(remat_add_files what sources private_headers headers)
  remat_check_listed("${what}, sources" ${sources})
  if(headers OR private_headers)
    remat_check_listed("${what}, headers" ${headers} ${private_headers})
  endif()
  remat_check_all_listed(PATTERNS *.cpp *.h LISTED ${sources} ${headers} ${private_headers})
  target_sources(remat_${module}_module PRIVATE ${sources} ${private_headers})
  if(headers)
    target_sources(remat_${module}_module PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${headers})
    list(TRANSFORM headers PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
    set_property(GLOBAL APPEND PROPERTY REMAT_HEADERS_${module} ${headers})
    set_property(GLOBAL APPEND PROPERTY REMAT_HEADER_FOLDERS_${module} "${CMAKE_CURRENT_SOURCE_DIR}/include")
  endif()
endfunction()

# Nothing of `target` is compiled while a file of a room includes one of a room above its own.
function(remat_check_rooms target)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.h" "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  string(REPLACE ";" "," rooms "${ARGN}")
  set(script "${PROJECT_SOURCE_DIR}/cmake/CheckRooms.cmake")
  set(stamp "${CMAKE_CURRENT_BINARY_DIR}/rooms.stamp")
  add_custom_command(OUTPUT "${stamp}" DEPENDS ${files} "${script}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" "-DFOLDER=${CMAKE_CURRENT_SOURCE_DIR}" "-DROOMS=${rooms}" "-DSTAMP=${stamp}" -P "${script}"
    COMMENT "Looking at who includes whom in the rooms of ${target}")
  add_custom_target(${target}_rooms DEPENDS "${stamp}")
  add_dependencies(${target} ${target}_rooms)
endfunction()

# remat_add_plain_program(name SOURCES ... LINKS ...): an executable with our options that links nothing but LINKS.
function(remat_add_plain_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "[remat_add_plain_program ${target}] unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  remat_check_listed("program ${target}" ${arg_SOURCES})
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE remat_build_options ${arg_LINKS})
endfunction()

# remat_add_program(name [CUDA] SOURCES ... LINKS ...): an executable with our options, on remat::remat.
# CUDA: links every backend of LibTorch when REMAT_WITH_CUDA is on (0.15 s and 350 MB more at every start).
function(remat_add_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CUDA" "" "SOURCES;LINKS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "[remat_add_program ${target}] unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  remat_add_plain_program(${target} SOURCES ${arg_SOURCES} LINKS remat::remat ${arg_LINKS})
  if(arg_CUDA AND REMAT_WITH_CUDA)
    target_link_libraries(${target} PRIVATE remat_libtorch::torch)
  endif()
endfunction()
