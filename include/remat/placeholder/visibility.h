// SPDX-License-Identifier: BSD-3-Clause

// The mark of what this library exports. The same macro as tape's: nothing below tape may include
// tape.
#pragma once

#define REMAT_API __attribute__((visibility("default")))
