# SPDX-License-Identifier: BSD-3-Clause

# cmake -DOUTPUT=texts.cpp -DHEADER=texts.h -DTEXTS=kPage=page.html,kScript=a.js+b.js -P EmbedTexts.cmake: writes a source that
# defines a std::string_view in remat::detail for each name: its files, one after the other. HEADER declares these names.

cmake_minimum_required(VERSION 3.25)
set(source "// Made by cmake/EmbedTexts.cmake.\n#include \"${HEADER}\"\n\nnamespace remat::detail {\n")
string(REPLACE "," ";" TEXTS "${TEXTS}")
foreach(entry IN LISTS TEXTS)
  string(REGEX MATCH "^([A-Za-z]+)=(.*)$" entry "${entry}")
  set(name "${CMAKE_MATCH_1}")
  string(REPLACE "+" ";" files "${CMAKE_MATCH_2}")
  string(APPEND source "\nconst std::string_view ${name} =")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    if(text MATCHES "\\)texts\"")
      message(FATAL_ERROR "[embed] ${file}: expected a text without )texts\", which ends it in C++, got one. Write it otherwise.")
    endif()
    string(APPEND source "\n    R\"texts(${text})texts\"")
  endforeach()
  string(APPEND source ";\n")
endforeach()
file(WRITE "${OUTPUT}" "${source}\n}  // namespace remat::detail\n")
