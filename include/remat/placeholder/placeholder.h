// SPDX-License-Identifier: BSD-3-Clause

// Tensors without data: what they stand for, how to make them, and the error when they are read.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>

#include <remat/placeholder/visibility.h>

namespace remat {

enum class PlaceholderKind : uint8_t {
  kResult,  ///< Stands for a value that a replay did not compute. Only its metadata may be used.
  kDry,     ///< Lives on the device remat_meta and computes shapes, never data.
};

/// The value that a placeholder stands for. All aliases of the placeholder share it.
struct PlaceholderInfo {
  PlaceholderKind kind = PlaceholderKind::kResult;
  std::string region;  ///< Label of the region, "region 'block3'"; empty for a dry tensor
  std::string call;    ///< Name of the call that returned it; empty for a dry tensor
  std::string op;      ///< Op that made the value, "aten::mm"; may be empty
};

/// A tensor with the sizes, strides, storage offset, dtype and storage size of `like`, but without
/// data. A kResult placeholder reports the device of `like`, a dry one remat_meta:0. The result
/// requires no grad and keeps nothing of `like` alive. Any thread. Throws NotImplementedError
/// unless `like` is a strided tensor.
REMAT_API at::Tensor make_placeholder(const at::Tensor& like, PlaceholderInfo info);

/// A dry tensor with its own storage. Sizes and strides in elements. Any thread.
REMAT_API at::Tensor make_dry(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              c10::ScalarType dtype, std::string_view op);

/// True for placeholders and for all tensors that share their storage: views, aliases, detached
/// tensors. False for undefined tensors. Any thread.
REMAT_API bool is_placeholder(const at::Tensor& tensor);

/// The PlaceholderInfo that `tensor` was made with. Lives as long as the storage of `tensor`.
/// Throws ValueError if `tensor` is no placeholder.
REMAT_API const PlaceholderInfo& placeholder_info(const at::Tensor& tensor);

/// Describes a tensor: "float32 [2, 3] on cpu".
REMAT_API std::string describe_tensor(const at::Tensor& tensor);

/// Always throws c10::Error, saying that `op_name` needs data that the placeholder does not have.
[[noreturn]] REMAT_API void throw_placeholder_access(std::string_view op_name,
                                                     const PlaceholderInfo& info);

}  // namespace remat
