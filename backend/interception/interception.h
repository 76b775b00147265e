// SPDX-License-Identifier: BSD-3-Clause

// Shows every op of a region to the scopes of its thread, before autograd.
#pragma once

#include <string>

namespace remat {

/// Registers, once and at first use, a boxed kernel for every op that LibTorch knows now, and for
/// each one that is registered later, on the autograd key of a backend that nobody else uses. They
/// run only on threads that have switched interception on (Note [Interception bits]).
///
/// Note [Which backend]: PrivateUse3. PrivateUse1 is where devices live, remat_meta or another
/// library's, and dispatches by their tensors; nobody is known to use PrivateUse3. Should somebody,
/// REMAT_DISPATCH_KEY=PrivateUse1 chooses the other one. Throws, naming who has it, if the chosen
/// one is taken.
///
/// Any thread. Takes some 10 ms the first time; later only what has been registered since.
void install_interception();

}  // namespace remat
