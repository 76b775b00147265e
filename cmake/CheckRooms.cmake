# SPDX-License-Identifier: BSD-3-Clause

# cmake -DROOMS=list.cmake -DSTAMP=file -P CheckRooms.cmake: fails if a file includes a header that it may not see; else writes
# the stamp. A module without rooms counts as a room. The list sets
#   rooms              names
#   files_of_ROOM      its files, public headers among them
#   seen_by_ROOM       the other rooms that its files may include from
#   public_headers     what users include, as "remat/tape/cuts.h"; they include nothing else of ours

cmake_minimum_required(VERSION 3.25)
include("${ROOMS}")

# Sets `out` to the name that identifies a header: "remat/tape/region.h", or "tape/turn.h" for a private header.
function(name_of file room out)
  string(REGEX REPLACE "/.*" "" module "${room}")
  if(file MATCHES "/include/(remat/[a-z_0-9/]+\\.h)$")
    set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    get_filename_component(name "${file}" NAME)
    set(${out} "${module}/${name}" PARENT_SCOPE)
  endif()
endfunction()

foreach(room IN LISTS rooms)
  foreach(file IN LISTS files_of_${room})
    name_of("${file}" "${room}" name)
    set("room_of_${name}" "${room}")
  endforeach()
endforeach()

set(wrong "")
foreach(room IN LISTS rooms)
  foreach(file IN LISTS files_of_${room})
    name_of("${file}" "${room}" name)
    set(is_public FALSE)
    if(name IN_LIST public_headers)
      set(is_public TRUE)
    endif()
    file(STRINGS "${file}" includes REGEX "^#include (\"[a-z_0-9]+\\.h\"|<remat/[a-z_0-9/]+\\.h>)")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE "^#include [\"<]([a-z_0-9/]+\\.h)[\">].*" "\\1" path "${include}")
      if(include MATCHES "\"")
        name_of("${path}" "${room}" path)
      endif()
      set(from "${room_of_${path}}")
      if(from AND NOT from STREQUAL room AND NOT from IN_LIST seen_by_${room})
        string(APPEND wrong "\n  ${file}: ${include}, of ${from}, which ${room} may not see")
      elseif(is_public AND NOT path IN_LIST public_headers)
        string(APPEND wrong "\n  ${file}: ${include}, which users do not have")
      endif()
    endforeach()
  endforeach()
endforeach()
# All of remat is one namespace and the library one file: if two types had the same name, the linker would keep the functions of
# only one of the types.
foreach(room IN LISTS rooms)
  foreach(file IN LISTS files_of_${room})
    if(file MATCHES "\\.h$")
      file(STRINGS "${file}" types REGEX "^(class|struct|enum class) .*[{:]$")
      foreach(type IN LISTS types)
        string(REGEX REPLACE "^(class|struct|enum class) (REMAT_API )?([A-Za-z]+).*" "\\3" type "${type}")
        if(DEFINED file_of_${type} AND NOT file_of_${type} STREQUAL file)
          string(APPEND wrong "\n  ${file}: ${type}, as in ${file_of_${type}}")
        endif()
        set(file_of_${type} "${file}")
      endforeach()
    endif()
  endforeach()
endforeach()
if(wrong)
  message(FATAL_ERROR "[rooms] expected that files include only what is in their own room, in one listed before it, or in a module "
    "that theirs USES, public headers only public ones, and that each type has a name of its own, got:${wrong}\nMove the file, put an "
    "interface below, or rename the type.")
endif()
file(WRITE "${STAMP}" "")
