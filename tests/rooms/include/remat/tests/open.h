// SPDX-License-Identifier: BSD-3-Clause

// For users, who do not have what it includes.
#pragma once

#include <remat/tests/high.h>
