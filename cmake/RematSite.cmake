# SPDX-License-Identifier: BSD-3-Clause

# The manual and the reference of both languages as a site: the target docs_site and the test docs.site. Needs the package,
# whose docstrings it reads.

set(REMAT_SITE_TOOLS "${PROJECT_SOURCE_DIR}/build/docs_tools" CACHE PATH "Where setup.sh puts Sphinx")
set(site_environment "PYTHONPATH=${REMAT_SITE_TOOLS}:${PROJECT_BINARY_DIR}/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1)
set(site_command "${REMAT_PYTHON}" "${PROJECT_SOURCE_DIR}/docs/build.py" "${PROJECT_BINARY_DIR}/site")

add_custom_target(docs_site
  COMMAND "${CMAKE_COMMAND}" -E env ${site_environment} ${site_command}
  COMMAND "${CMAKE_COMMAND}" -E echo "[docs] open ${PROJECT_BINARY_DIR}/site/html/index.html"
  DEPENDS remat_python USES_TERMINAL VERBATIM)

find_program(REMAT_DOXYGEN doxygen DOC "Reads the headers for the site of the manual")
execute_process(COMMAND "${CMAKE_COMMAND}" -E env ${site_environment} "${REMAT_PYTHON}" -c "import breathe, furo, myst_parser"
  OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE status)
if(REMAT_DOXYGEN AND status EQUAL 0)
  remat_add_test(docs.site BUDGET_S 20 COMMAND ${site_command})
  set_tests_properties(docs.site PROPERTIES LABELS docs ENVIRONMENT "${site_environment}")
else()
  message(NOTICE "[docs] expected doxygen, and Sphinx in build/docs_tools, got not both: the site's test is left out. "
    "Run ./setup.sh none.")
endif()
