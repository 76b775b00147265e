# SPDX-License-Identifier: BSD-3-Clause

# Functions that define the project's targets: compile options, modules, programs.

# Compile options of all our code. They do not reach targets that link remat.
add_library(remat_build_options INTERFACE)
target_compile_features(remat_build_options INTERFACE cxx_std_20)
target_compile_options(remat_build_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual -Wunused -Wmissing-declarations
  # g++ 12 warns about std::string's own operator+ (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict -Wno-stringop-overflow>)
if(REMAT_WERROR)
  target_compile_options(remat_build_options INTERFACE -Werror)
endif()
if(REMAT_SANITIZE)
  target_compile_options(remat_build_options INTERFACE
    -O1 -g1 -fsanitize=${REMAT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # Turns one check off for targets with this property; must follow the option that turns the checks on.
    $<$<BOOL:$<TARGET_PROPERTY:REMAT_WITHOUT_VPTR_CHECK>>:-fno-sanitize=vptr>
    # This warning is wrong too often in instrumented code.
    -Wno-maybe-uninitialized)
  target_link_options(remat_build_options INTERFACE -fsanitize=${REMAT_SANITIZE})
endif()

# remat_unite(target n) compiles n sources of the target as one.
#
# Note [Unity builds]
# Most of the time of a file goes into reading LibTorch's headers, so some files are compiled as one. Such files share one unnamed
# namespace, so names in unnamed namespaces must differ within a target. The presets dev and tidy compile each file alone, which
# shows an #include that is missing.
function(remat_unite target batch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${REMAT_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# remat_precompile(target): compiles the LibTorch headers that most files include once, for all targets of the same kind (position
# independent, hidden symbols): takes 20 s, and saves 6 s for each united file. Does nothing if files are compiled alone.
function(remat_precompile target)
  if(NOT REMAT_UNITY_BUILD)
    return()
  endif()
  get_property(first GLOBAL PROPERTY REMAT_PRECOMPILED)
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE
      <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h> <torch/csrc/autograd/function.h>)
    set_property(GLOBAL PROPERTY REMAT_PRECOMPILED ${target})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # ccache needs to see which precompiled header was read.
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
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
  # A folder with its own CMakeLists.txt lists its sources itself.
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

# remat_add_module(placeholder SOURCES a.cpp PRIVATE_HEADERS b.h HEADERS include/remat/placeholder/c.h PUBLIC_HEADERS d.h
#   USES modules... LINKS targets... [NO_TORCH])
# Target remat_placeholder_module: the objects of one folder. HEADERS are for it and the modules that use it, PUBLIC_HEADERS,
# which are in the project's include/remat/placeholder/, for users. NO_TORCH: it does not see LibTorch. remat_add_library() makes
# libraries of modules.
#
# remat_add_module(tape ROOMS tensor region... USES modules... LINKS targets...)
# A module whose files are in rooms: folders, from the ground up, each with a CMakeLists.txt that calls remat_add_room().
function(remat_add_module module)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_TORCH" "" "SOURCES;PRIVATE_HEADERS;HEADERS;PUBLIC_HEADERS;ROOMS;USES;LINKS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "[remat_add_module ${module}] unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target remat_${module}_module)
  add_library(${target} OBJECT)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/include")
  list(TRANSFORM arg_USES REPLACE "(.+)" "remat_\\1_module" OUTPUT_VARIABLE used)
  target_link_libraries(${target} PUBLIC ${used} ${arg_LINKS} PRIVATE remat_build_options)
  remat_unite(${target} 12)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON
    VERIFY_INTERFACE_HEADER_SETS ON)
  if(NOT arg_NO_TORCH)
    remat_precompile(${target})
  endif()

  set(seen "")  # rooms that its files may include from
  foreach(used IN LISTS arg_USES)
    get_property(rooms GLOBAL PROPERTY REMAT_SEEN_WITH_${used})
    list(APPEND seen ${rooms})
  endforeach()
  if(arg_ROOMS)
    remat_check_all_listed(PATTERNS *.cpp *.h LISTED "")
    foreach(folder IN LISTS arg_ROOMS)
      set(room ${module}/${folder})
      add_subdirectory(${folder})
      list(APPEND seen ${room})
    endforeach()
  else()
    set(room ${module})
    remat_add_files("${arg_SOURCES}" "${arg_PRIVATE_HEADERS}" "${arg_HEADERS}" "${arg_PUBLIC_HEADERS}")
    list(APPEND seen ${room})
  endif()
  list(REMOVE_DUPLICATES seen)
  set_property(GLOBAL PROPERTY REMAT_SEEN_WITH_${module} ${seen})
  set_property(GLOBAL APPEND PROPERTY REMAT_MODULES ${module})
endfunction()

# remat_add_room(SOURCES a.cpp PRIVATE_HEADERS b.h HEADERS include/remat/tape/c.h PUBLIC_HEADERS d.h)
# Call in the folder of a room: its files may include those of the rooms listed before it.
function(remat_add_room)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;PRIVATE_HEADERS;HEADERS;PUBLIC_HEADERS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "[remat_add_room ${room}] unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  remat_add_files("${arg_SOURCES}" "${arg_PRIVATE_HEADERS}" "${arg_HEADERS}" "${arg_PUBLIC_HEADERS}")
  target_include_directories(remat_${module}_module PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
endfunction()

# Adds the files of `room`, which is `module` or one of its rooms: all files in this folder, and public headers.
function(remat_add_files sources private_headers headers public_headers)
  remat_check_listed("${room}, sources" ${sources})
  list(TRANSFORM public_headers PREPEND "${PROJECT_SOURCE_DIR}/include/remat/${module}/")
  foreach(file IN LISTS headers private_headers public_headers)
    cmake_path(ABSOLUTE_PATH file OUTPUT_VARIABLE path)
    if(NOT EXISTS "${path}")
      message(FATAL_ERROR "[${room}, headers] listed but absent: ${path}. Write it or take it off ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt.")
    endif()
  endforeach()
  remat_check_all_listed(PATTERNS *.cpp *.h LISTED ${sources} ${headers} ${private_headers})
  target_sources(remat_${module}_module PRIVATE ${sources} ${private_headers})
  if(headers)
    target_sources(remat_${module}_module PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${headers})
  endif()
  set_property(GLOBAL APPEND PROPERTY REMAT_PUBLIC_HEADERS_${module} ${public_headers})
  set(own ${sources} ${headers} ${private_headers})
  list(TRANSFORM own PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set_property(GLOBAL APPEND PROPERTY REMAT_ROOMS ${room})
  set_property(GLOBAL PROPERTY REMAT_FILES_${room} ${own} ${public_headers})
  set_property(GLOBAL PROPERTY REMAT_SEEN_BY_${room} ${seen})
endfunction()

# Call once, after all modules: no source is compiled while a file includes a header that it may not see. See CheckRooms.cmake.
function(remat_check_rooms)
  get_property(rooms GLOBAL PROPERTY REMAT_ROOMS)
  get_property(modules GLOBAL PROPERTY REMAT_MODULES)
  set(list "set(rooms ${rooms})\n")
  set(all "")
  foreach(room IN LISTS rooms)
    get_property(files GLOBAL PROPERTY REMAT_FILES_${room})
    get_property(seen GLOBAL PROPERTY REMAT_SEEN_BY_${room})
    string(APPEND list "set(files_of_${room} \"${files}\")\nset(seen_by_${room} ${seen})\n")
    list(APPEND all ${files})
  endforeach()
  set(include "${PROJECT_SOURCE_DIR}/include")
  set(front_door "${include}/remat/remat.h")
  file(GLOB_RECURSE public CONFIGURE_DEPENDS "${include}/*.h")
  foreach(header IN LISTS public)
    if(NOT header STREQUAL front_door AND NOT header IN_LIST all)
      message(FATAL_ERROR "[headers] not listed as a public header of any module, so never installed: ${header}. List or remove it.")
    endif()
  endforeach()
  # No source of ours includes <remat/remat.h>, the front door.
  string(APPEND list "list(APPEND rooms front_door)\nset(files_of_front_door \"${front_door}\")\nset(seen_by_front_door \${rooms})\n")
  list(TRANSFORM public REPLACE "^.*/include/(remat/.*)$" "\\1")
  string(APPEND list "set(public_headers ${public})\n")

  set(script "${PROJECT_SOURCE_DIR}/cmake/CheckRooms.cmake")
  set(written "${CMAKE_CURRENT_BINARY_DIR}/rooms.cmake")
  set(stamp "${CMAKE_CURRENT_BINARY_DIR}/rooms.stamp")
  file(CONFIGURE OUTPUT "${written}" CONTENT "${list}" @ONLY)
  add_custom_command(OUTPUT "${stamp}" DEPENDS ${all} "${front_door}" "${script}" "${written}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" "-DROOMS=${written}" "-DSTAMP=${stamp}" -P "${script}"
    COMMENT "Looking at who includes whom")
  add_custom_target(remat_rooms DEPENDS "${stamp}")
  foreach(module IN LISTS modules)
    add_dependencies(remat_${module}_module remat_rooms)
  endforeach()
endfunction()

# remat_add_library(remat [OF_TORCH] MODULES placeholder tape... [HEADERS_OF more modules...] LINKS targets...)
# Target remat, alias remat::MODULE of each module: a library of these modules, installed with their public headers.
# OF_TORCH: the library depends on LibTorch's minor version, and is installed into a folder for it.
function(remat_add_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OF_TORCH" "" "MODULES;HEADERS_OF;LINKS")
  add_library(${target})
  set(folder ${CMAKE_INSTALL_LIBDIR})
  set(rpath "$ORIGIN")
  if(arg_OF_TORCH)
    string(APPEND folder "/torch-${REMAT_TORCH_VERSION}")
    set(rpath "$ORIGIN;$ORIGIN/..")
  endif()
  foreach(module IN LISTS arg_MODULES)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:remat_${module}_module>)
    add_library(remat::${module} ALIAS ${target})
  endforeach()
  foreach(module IN LISTS arg_MODULES arg_HEADERS_OF)
    get_property(headers GLOBAL PROPERTY REMAT_PUBLIC_HEADERS_${module})
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${headers})
  endforeach()
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${arg_LINKS} PRIVATE $<BUILD_INTERFACE:remat_build_options>)
  string(REGEX REPLACE "^remat_" "" exported "${target}")
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${exported}
    VERIFY_INTERFACE_HEADER_SETS ON
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    # A wheel's LibTorch is in no folder that the loader searches, so installed libraries remember its place.
    INSTALL_RPATH "${rpath}"
    INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${target} EXPORT RematTargets
    LIBRARY DESTINATION ${folder}
    ARCHIVE DESTINATION ${folder}
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
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

# remat_internals: the headers that modules have for each other, for tests and for bindings of other languages.
function(remat_add_internals)
  get_property(modules GLOBAL PROPERTY REMAT_MODULES)
  add_library(remat_internals INTERFACE)
  foreach(module IN LISTS modules)
    target_include_directories(remat_internals INTERFACE
      $<TARGET_PROPERTY:remat_${module}_module,INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
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
