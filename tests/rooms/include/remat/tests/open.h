// SPDX-License-Identifier: BSD-3-Clause

// A public header that includes a header that users do not have.
#pragma once

#include <remat/tests/high.h>
