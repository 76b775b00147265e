// SPDX-License-Identifier: BSD-3-Clause

// The macro that marks exported symbols. It repeats the one in tape, because nothing below tape may
// include tape.
#pragma once

#define REMAT_API __attribute__((visibility("default")))
