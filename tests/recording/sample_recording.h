// SPDX-License-Identifier: BSD-3-Clause

// Recordings with an event of each kind, written by hand.
#pragma once

#include <cstdint>
#include <string>

#include <remat/recording/recording.h>

namespace remat::test {

/// A step with a region, two threads and every kind of event. Times and sizes depend on `seed`.
Recording sample_recording(int64_t seed);

/// Writes the recording as a recorder would: in `parts` parts, each with a block per thread.
void write(const Recording& recording, const std::string& path, size_t parts = 1);

/// True if both have the same events and texts, whatever their damage flags.
bool same(const Recording& a, const Recording& b);

}  // namespace remat::test
