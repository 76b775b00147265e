// SPDX-License-Identifier: BSD-3-Clause

// The mark of what remat's shared libraries export, from policy/ upward.
#pragma once

#define REMAT_API __attribute__((visibility("default")))
