// SPDX-License-Identifier: BSD-3-Clause

// The macro that marks symbols exported by remat's shared libraries.
#pragma once

#include <remat/policy/export.h>
