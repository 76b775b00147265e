// SPDX-License-Identifier: BSD-3-Clause

// Handles of collectives that go on after their op has returned.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <remat/tape/export.h>

namespace remat {

/// True for LibTorch's c10d::Work.
REMAT_API bool is_work(const c10::IValue& value);

/// True if the collective has ended; of a send or receive between CPUs, if somebody has waited for
/// it: these must not be waited for twice.
REMAT_API bool has_ended(const c10::IValue& work);

/// Returns when what the collective writes can be read by ops that are called after that. Rethrows
/// its error.
REMAT_API void wait_for(const c10::IValue& work);

/// The same for `tensor`, which a functional collective (_c10d_functional) may still write. Returns
/// at once for another one.
REMAT_API void wait_for_functional(const at::Tensor& tensor);

/// The same for what a tensor of a Python class consists of, too.
REMAT_API void wait_for_functional_in(const at::Tensor& tensor);

/// `work`, whose wait() may run ops of its own that are nobody's. It waits once, however often it
/// is asked.
REMAT_API c10::IValue unseen_work(const c10::IValue& work);

/// A Work that has ended, for a call that a replay leaves out.
REMAT_API c10::IValue ended_work();

}  // namespace remat
