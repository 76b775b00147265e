// SPDX-License-Identifier: BSD-3-Clause

// Autocast for remat_meta.
#pragma once

namespace remat {

/// Permanently registers the casts that LibTorch has for every device: its lists of ops that run in
/// lower precision, in float32, or in the widest dtype of their inputs. Call it once.
void register_dry_autocast();

}  // namespace remat
