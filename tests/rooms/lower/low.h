// SPDX-License-Identifier: BSD-3-Clause

// Looks up.
#pragma once

#include <remat/tests/high.h>
