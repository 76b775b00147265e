# SPDX-License-Identifier: BSD-3-Clause

# Two rooms of a module, and another module, for cmake/CheckRooms.cmake, with one instance of each error that it must find.
set(here "${CMAKE_CURRENT_LIST_DIR}")
set(rooms tests/lower tests/upper other)
set(files_of_tests/lower "${here}/lower/low.h")
set(seen_by_tests/lower "")
set(files_of_tests/upper "${here}/upper/include/remat/tests/high.h" "${here}/include/remat/tests/open.h")
set(seen_by_tests/upper tests/lower)
set(files_of_other "${here}/other/include/remat/other/far.h")
set(seen_by_other "")
set(public_headers remat/tests/open.h)
