// SPDX-License-Identifier: BSD-3-Clause

// Handles of collectives that are still running when their op returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <remat/engine/export.h>

namespace remat {

/// True if `value` is a c10d::Work of LibTorch.
REMAT_API bool is_work(const c10::IValue& value);

/// True if the collective has ended. For a send or receive between CPUs, true if somebody has
/// waited for it, because one must not wait for it twice.
REMAT_API bool has_ended(const c10::IValue& work);

/// Waits until ops called afterwards can read what the collective writes. Rethrows errors of
/// `work`.
REMAT_API void wait_for(const c10::IValue& work);

/// Waits for a functional collective (_c10d_functional) that may still write `tensor`. Returns at
/// once if there is none.
REMAT_API void wait_for_functional(const at::Tensor& tensor);

/// Like wait_for_functional(), also for the inner tensors of a tensor subclass.
REMAT_API void wait_for_functional_in(const at::Tensor& tensor);

/// Wraps `work` so that ops that its wait() runs are hidden from scopes. The wrapper waits once,
/// however often its wait() is called.
REMAT_API c10::IValue unseen_work(const c10::IValue& work);

/// Returns a Work that has ended, for a call that a replay leaves out.
REMAT_API c10::IValue ended_work();

}  // namespace remat
