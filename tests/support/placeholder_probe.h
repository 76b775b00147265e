// SPDX-License-Identifier: BSD-3-Clause

// Placeholders of slots for tests, and the error that an access to their data must raise.
#pragma once

#include <remat/placeholder/placeholder.h>

#include "support/catch.h"
#include "support/error_text.h"

#include <torch/torch.h>

#include <functional>
#include <string>

#include "backend/dispatch/private_use_fallback.h"

/// Returns a placeholder for a tensor like `like`, made by aten::mm in slot 's' of region 'r'.
inline at::Tensor slot_like(const at::Tensor& like) {
  remat::install_private_use_fallback();
  return remat::make_placeholder(like, {.kind = remat::PlaceholderKind::kResult,
                                        .region = "region 'r'",
                                        .call = "s",
                                        .op = "aten::mm"});
}

inline at::Tensor slot(at::IntArrayRef sizes = {4, 6}, at::ScalarType dtype = at::kFloat) {
  return slot_like(at::zeros(sizes, dtype));
}

struct Read {
  std::string reader;
  std::function<void(const at::Tensor&)> read;
};

inline void check_raises(const Read& probe, const at::Tensor& placeholder) {
  const std::string text = error_text([&] { probe.read(placeholder); });
  INFO(probe.reader);
  CHECK_THAT(text, ContainsSubstring(
                       "[placeholder] result of call 's' (aten::mm) of region 'r': expected a "
                       "use of its shape only, got " +
                       probe.reader + ", which needs its data."));
}

inline constexpr const char* kMemory = "a read of its memory";

/// Returns a view into a larger storage, so that offsets and strides matter.
inline at::Tensor real_base() {
  return at::zeros({5, 8}).narrow(0, 1, 4).narrow(1, 2, 6);
}
