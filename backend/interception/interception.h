// SPDX-License-Identifier: BSD-3-Clause

// Showing every op of a region to the scopes of its thread, before autograd.
#pragma once

#include <string>

namespace remat {

/// Registers a boxed kernel for every op on the autograd key of an unused backend: at the first
/// call for all ops of LibTorch, later for ops that are new. The kernels run only on threads that
/// have switched interception on (Note [Interception bits]).
///
/// Note [Which backend]: the default is PrivateUse3, which no library is known to use, and not
/// PrivateUse1, because tensors of remat_meta or of another library's device may dispatch to it. If
/// PrivateUse3 is in use, REMAT_DISPATCH_KEY=PrivateUse1 chooses PrivateUse1. Throws, naming the
/// owner, if the chosen backend is taken.
///
/// Usable from any thread. Takes some 10 ms the first time, and later only time for new ops.
void install_interception();

}  // namespace remat
