// SPDX-License-Identifier: BSD-3-Clause

// Chooses ops by their schemas and kernels, and by name where these are not enough.
#include "op_choice.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "host_computation.h"
#include "random_draw.h"

namespace cuda_stand_in {
namespace {

using c10::DispatchKey;

// Ops whose kernels only allocate, resize or synchronise, and ops of libraries that are absent.
constexpr std::array kLeftAlone = {
    "aten::empty",         "aten::_empty",      "aten::set_",
    "aten::resize_",       "aten::_resize",     "aten::_efficientzerotensor",
    "aten::record_stream", "aten::_pin_memory", "aten::cudnn",
    "aten::_cudnn",        "aten::_cuda",       "aten::_copy_from",
};

// Composite ops that are computed as a whole. CUDA would choose parts that give other bits than the
// parts that the CPU chooses, or that have no kernel at CUDA's dispatch key.
constexpr std::array kWhole = {"aten::copy_", "aten::convolution"};

// Ops with results whose sizes depend on values, with results that are numbers, or that check
// values.
constexpr std::array kSizedByNumbers = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::unique_dim_consecutive",
    "aten::repeat_interleave",
    "aten::bincount",
    "aten::histc",
    "aten::equal",
    "aten::segment_reduce",
};

// Ops whose CUDA kernels call cuSOLVER, MAGMA or cuFFT, which the stand-in does not have.
constexpr std::array kOfOtherLibraries = {
    "aten::_cholesky_solve_helper",
    "aten::_fft_c2c",
    "aten::_fft_c2r",
    "aten::_fft_r2c",
    "aten::_linalg_det",
    "aten::_linalg_eigh",
    "aten::_linalg_eigvals",
    "aten::_linalg_slogdet",
    "aten::_linalg_solve_ex",
    "aten::_linalg_svd",
    "aten::cholesky",
    "aten::cholesky_inverse",
    "aten::geqrf",
    "aten::linalg_cholesky_ex",
    "aten::linalg_eig",
    "aten::linalg_householder_product",
    "aten::linalg_inv_ex",
    "aten::linalg_ldl_factor_ex",
    "aten::linalg_ldl_solve",
    "aten::linalg_lstsq",
    "aten::linalg_lu",
    "aten::linalg_lu_factor_ex",
    "aten::linalg_lu_solve",
    "aten::linalg_matrix_exp",

    "aten::linalg_qr",
    "aten::linalg_solve_triangular",
    "aten::lu_solve",
    "aten::ormqr",
    "aten::triangular_solve",
};

template <size_t N>
bool holds(const std::array<const char*, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_left_alone(const std::string& name) {
  return std::any_of(kLeftAlone.begin(), kLeftAlone.end(),
                     [&](std::string_view prefix) { return name.rfind(prefix, 0) == 0; });
}

/// True if each result is either a new tensor or an argument that the op writes.
bool returns_written_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) {
                       const bool is_view = result.alias_info() && !result.alias_info()->isWrite();
                       const c10::Type& type = *result.type();
                       return !is_view && (type.isSubtypeOf(*c10::TensorType::get()) ||
                                           type.isSubtypeOf(*c10::ListType::ofTensors()));
                     });
}

bool is_synchronous(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return holds(kSizedByNumbers, name) || holds(kOfOtherLibraries, name);
}

}  // namespace

Kind kind_of(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (name.rfind("aten::", 0) != 0 || is_left_alone(name)) return Kind::kNone;
  if (!host_computation(op)) return Kind::kNone;
  // A composite op below autograd may be computed as a whole. Autograd takes the others apart.
  const bool is_composite = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
                            (holds(kWhole, name) || is_synchronous(op));
  if (!is_composite && !op.hasKernelForDispatchKey(DispatchKey::CUDA)) return Kind::kNone;
  if (is_synchronous(op)) return Kind::kSynchronous;
  return returns_written_tensors(op.schema()) ? Kind::kQueued : Kind::kNone;
}

bool is_random(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::nondeterministic_seeded) ||
         std::any_of(arguments.begin(), arguments.end(), is_generator);
}

}  // namespace cuda_stand_in
