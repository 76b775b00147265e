// SPDX-License-Identifier: BSD-3-Clause

// The macro that marks exported symbols. It repeats the macro of remat/policy/export.h, which
// placeholder may not include.
#pragma once

#define REMAT_API __attribute__((visibility("default")))
