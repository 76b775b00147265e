// SPDX-License-Identifier: BSD-3-Clause

// Turns callgrind's counting on and off for Python, in a process that was started with
// valgrind --tool=callgrind --instr-atstart=no --collect-atstart=no. Does nothing outside valgrind.
#include <valgrind/callgrind.h>

#define REMAT_EXPORTED extern "C" __attribute__((visibility("default")))

REMAT_EXPORTED void begin_rows();
REMAT_EXPORTED void toggle_counting();
REMAT_EXPORTED void end_row(const char* name);

void begin_rows() {
  CALLGRIND_START_INSTRUMENTATION;
}

void toggle_counting() {
  CALLGRIND_TOGGLE_COLLECT;
}

// Writes what was counted since the last row to a file that has the row's name.
void end_row(const char* name) {
  CALLGRIND_DUMP_STATS_AT(name);
}
