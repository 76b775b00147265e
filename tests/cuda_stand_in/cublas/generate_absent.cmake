# SPDX-License-Identifier: BSD-3-Clause

# cmake -DNM=nm -DPREFIX=cublas[A-KM-Z] -DLIBRARIES=a.so,b.so -DOUTPUT=absent.cpp -P generate_absent.cmake: writes a weak
# definition of every function that the libraries import and whose name begins with PREFIX. The function does nothing but count a
# launch; a definition in a source of the same library takes its place.

cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" LIBRARIES "${LIBRARIES}")
execute_process(COMMAND "${NM}" -D --undefined-only ${LIBRARIES} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " ${PREFIX}[A-Za-z0-9_]*" names "${symbols}")
list(TRANSFORM names STRIP)
list(REMOVE_DUPLICATES names)
list(SORT names)
set(source "// Made by generate_absent.cmake.\n#include \"control.h\"\n\n#define ABSENT(name) \\\n"
  "  extern \"C\" __attribute__((weak)) int name() { cuda_stand_in_count_launch(#name)\; return 0\; }\n\n")
foreach(name IN LISTS names)
  list(APPEND source "ABSENT(${name})\n")
endforeach()
file(WRITE "${OUTPUT}" ${source})
