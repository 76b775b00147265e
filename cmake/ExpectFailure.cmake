# SPDX-License-Identifier: BSD-3-Clause

# cmake -DREGEX=text -P ExpectFailure.cmake -- command...: succeeds when the command fails and its output matches.

set(command "")
set(after_dashes FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(after_dashes)
    list(APPEND command "${CMAKE_ARGV${i}}")
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(after_dashes TRUE)
  endif()
endforeach()

execute_process(COMMAND ${command} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
message("${output}")
if(status STREQUAL "0")
  message(FATAL_ERROR "expected a failure with \"${REGEX}\", got success")
elseif(NOT output MATCHES "${REGEX}")
  message(FATAL_ERROR "expected a message that matches \"${REGEX}\", got the above (status: ${status})")
endif()
