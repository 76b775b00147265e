// SPDX-License-Identifier: BSD-3-Clause

// Showing every op of a region to the scopes of its thread, before autograd.
#pragma once

#include <string>

namespace remat {

/// Registers, at first use, a boxed kernel for every op that LibTorch knows then, and for each one
/// registered later, on the autograd key of an unused backend. The kernels run only on threads that
/// have switched interception on (Note [Interception bits]).
///
/// Note [Which backend]: PrivateUse3. PrivateUse1 is used by devices, remat_meta or another
/// library's, whose tensors dispatch to it; PrivateUse3 is not known to be used. If it is,
/// REMAT_DISPATCH_KEY=PrivateUse1 chooses that backend. Throws, naming the owner, if the chosen
/// backend is taken.
///
/// Usable from any thread. Takes some 10 ms the first time; later only as long as new ops need.
void install_interception();

}  // namespace remat
