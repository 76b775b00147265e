// SPDX-License-Identifier: BSD-3-Clause

// Compiled as a file of the room tensor: it has headers of its own, and none of a room above it.
#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
