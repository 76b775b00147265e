// SPDX-License-Identifier: BSD-3-Clause

// The mark of what remat's shared libraries export.
#pragma once

#include <remat/policy/export.h>
