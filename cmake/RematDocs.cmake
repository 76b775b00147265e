# SPDX-License-Identifier: BSD-3-Clause

# Programs in the documentation, compiled and run as tests.

# remat_add_doc_tests(tutorial docs/tutorials/cpp.md): one test docs.tutorial.N for the N-th ```cpp block of the file. All blocks share one
# program, so names that they define outside main() must differ.
function(remat_add_doc_tests name file)
  set(path "${PROJECT_SOURCE_DIR}/${file}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
  file(READ "${path}" text)
  # CMake lists split at semicolons and brackets, so both are replaced while blocks are cut out.
  string(ASCII 1 semicolon)
  string(ASCII 2 open)
  string(ASCII 3 close)
  string(REPLACE ";" "${semicolon}" text "${text}")
  string(REPLACE "[" "${open}" text "${text}")
  string(REPLACE "]" "${close}" text "${text}")
  string(REGEX MATCHALL "```cpp\n[^`]*```" blocks "${text}")
  if(NOT blocks)
    message(FATAL_ERROR "[docs] no ```cpp block in ${file}: expected at least one.")
  endif()
  set(number 0)
  foreach(block IN LISTS blocks)
    math(EXPR number "${number} + 1")
    string(REGEX REPLACE "^```cpp\n" "" block "${block}")
    string(REGEX REPLACE "```$" "" block "${block}")
    string(REPLACE "${semicolon}" ";" block "${block}")
    string(REPLACE "${open}" "[" block "${block}")
    string(REPLACE "${close}" "]" block "${block}")
    # Each block becomes a function in one program for all: a file with LibTorch's headers takes 8 s to compile.
    set(program ${name}_${number})
    if(NOT block MATCHES "int main\\(\\) {.*\n}\n$")
      message(FATAL_ERROR "[docs] block ${number} of ${file}: expected a program that ends with its int main().")
    endif()
    string(REPLACE "int main() {" "int ${program}();\nint ${program}() {" block "${block}")
    string(REGEX REPLACE "}\n$" "  return 0;\n}\n" block "${block}")
    file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/docs/${program}.cpp" CONTENT "${block}" @ONLY)
    set_property(GLOBAL APPEND PROPERTY REMAT_DOC_PROGRAMS ${program})
    remat_add_test(docs.${name}.${number} BUDGET_S 3 COMMAND $<TARGET_FILE:docs_programs> ${program})
    set_tests_properties(docs.${name}.${number} PROPERTIES LABELS docs ENVIRONMENT "${REMAT_TEST_ENVIRONMENT}")
    if(block MATCHES "register_device")  # refused beside a GPU
      set_property(TEST docs.${name}.${number} APPEND PROPERTY ENVIRONMENT "CUDA_VISIBLE_DEVICES=")
    endif()
  endforeach()
endfunction()

# Call once, after all remat_add_doc_tests(): adds the program with all blocks, which runs the block that its argument names.
function(remat_add_doc_programs)
  get_property(programs GLOBAL PROPERTY REMAT_DOC_PROGRAMS)
  set(declared "")
  set(listed "")
  foreach(program IN LISTS programs)
    string(APPEND declared "int ${program}();\n")
    string(APPEND listed "    {\"${program}\", ${program}},\n")
  endforeach()
  set(main "${CMAKE_CURRENT_BINARY_DIR}/docs/main.cpp")
  file(CONFIGURE OUTPUT "${main}" @ONLY CONTENT "#include <map>
#include <string>

@declared@
int main(int argc, char** argv) {
  const std::map<std::string, int (*)()> programs = {
@listed@  };
  return argc == 2 ? programs.at(argv[1])() : 1;
}
")
  list(TRANSFORM programs REPLACE "(.+)" "${CMAKE_CURRENT_BINARY_DIR}/docs/\\1.cpp" OUTPUT_VARIABLE sources)
  add_executable(docs_programs "${main}" ${sources})
  target_link_libraries(docs_programs PRIVATE remat::remat Catch2::Catch2WithMain remat_build_options)
  remat_reuse_precompiled(docs_programs)
  remat_unite(docs_programs 12)
endfunction()
