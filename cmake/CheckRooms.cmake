# SPDX-License-Identifier: BSD-3-Clause

# cmake -DFOLDER=.../tape -DROOMS=support,tensor,... -DSTAMP=file -P CheckRooms.cmake: fails where a file of a room includes one
# of a room that is listed after its own; else writes the stamp.

cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" ROOMS "${ROOMS}")
foreach(room IN LISTS ROOMS)
  file(GLOB_RECURSE headers "${FOLDER}/${room}/*.h")
  foreach(header IN LISTS headers)
    get_filename_component(name "${header}" NAME)
    set(room_of_${name} ${room})
  endforeach()
endforeach()

set(wrong "")
set(above ${ROOMS})
foreach(room IN LISTS ROOMS)
  list(REMOVE_ITEM above ${room})
  file(GLOB_RECURSE files "${FOLDER}/${room}/*.h" "${FOLDER}/${room}/*.cpp")
  foreach(file IN LISTS files)
    # Of this module: "name.h" or <remat/MODULE/name.h>.
    file(STRINGS "${file}" includes REGEX "^#include (\"[a-z_0-9]+\\.h\"|<remat/[a-z_]+/[a-z_0-9]+\\.h>)")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE ".*[\"/]([a-z_0-9]+\\.h)[\">].*" "\\1" name "${include}")
      if(room_of_${name} IN_LIST above)
        string(APPEND wrong "\n  ${file}: ${include}, of the room ${room_of_${name}}, which is above ${room}")
      endif()
    endforeach()
  endforeach()
endforeach()
if(wrong)
  message(FATAL_ERROR "[rooms] expected that files include only what is in their own room or one listed before it, got:${wrong}\n"
    "Move the file, or put an interface below.")
endif()
file(WRITE "${STAMP}" "")
