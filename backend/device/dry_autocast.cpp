// SPDX-License-Identifier: BSD-3-Clause

// Registering LibTorch's own lists of autocast ops for PrivateUse1.
#include "dry_autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "private_use_fallback.h"

namespace {

// The lists are macros that use types of namespace at.
using namespace at;  // NOLINT(google-build-using-namespace)

#define REMAT_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define REMAT_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define REMAT_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define REMAT_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

void register_lists(torch::Library& m) {
  AT_FORALL_LOWER_PRECISION_FP(REMAT_LOWER)
  AT_FORALL_FP32(REMAT_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(REMAT_SET_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(REMAT_PROMOTE)
}

}  // namespace

namespace remat {

void register_dry_autocast() {
  constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;
  keep_library("_", kKey, __FILE__, __LINE__).fallback(torch::CppFunction::makeFallthrough());
  register_lists(keep_library("aten", kKey, __FILE__, __LINE__));
}

}  // namespace remat
