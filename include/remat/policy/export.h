// SPDX-License-Identifier: BSD-3-Clause

// The macro that marks exported symbols, for policy/ and all modules above it.
#pragma once

#define REMAT_API __attribute__((visibility("default")))
