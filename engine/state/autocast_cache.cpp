// SPDX-License-Identifier: BSD-3-Clause

// Recognising autocast's copies of parameters.
#include <remat/engine/autocast_cache.h>

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <optional>

#include <remat/engine/tensor_meta.h>
#include <remat/placeholder/placeholder_impl.h>

#include <remat/engine/unseen.h>
#include "owner_table.h"

namespace remat {
namespace {

bool is_low_precision(c10::ScalarType dtype) {
  return dtype == c10::kHalf || dtype == c10::kBFloat16;
}

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// The casts of the process, with the version that the leaf had when it was cast. Leaked,
/// because regions may outlive static objects.
using KnownCasts = OwnerTable<Weak, std::optional<SavedVersion>>;
KnownCasts& known_casts() {
  static KnownCasts& casts = *new KnownCasts(/*few=*/256);
  return casts;
}

void add_cast(const at::Tensor& cast, const at::Tensor& leaf) {
  known_casts().change(cast.unsafeGetTensorImpl(), Weak(cast.getIntrusivePtr()),
                       [&](std::optional<SavedVersion>& version) { version.emplace(leaf); });
}

/// The version of the leaf when it was cast; nullopt if unknown.
std::optional<SavedVersion> find_cast(const at::Tensor& cast) {
  std::optional<SavedVersion> found;
  known_casts().read(cast.unsafeGetTensorImpl(),
                     [&](const std::optional<SavedVersion>& version) { found = version; });
  return found;
}

bool has_values_of(const at::Tensor& cast, const at::Tensor& leaf) {
  const bool is_comparable = (cast.is_cpu() || cast.is_cuda()) && !is_of_python_class(cast) &&
                             !is_of_python_class(leaf) && !PlaceholderStorage::is(cast.storage());
  if (!is_comparable) return true;
  const Unseen unseen;
  const c10::AutoGradMode no_grad(false);
  const auto bits = [](const at::Tensor& tensor) { return tensor.detach().view(c10::kShort); };
  return bits(cast).equal(bits(leaf.to(cast.scalar_type())));
}

}  // namespace

bool is_cacheable_cast(const OpCall& call) {
  if (!call.info().is_cast() || !call.argument(0).isTensor()) return false;
  const at::Tensor& tensor = call.argument(0).toTensor();
  const c10::IValue& dtype = call.argument(1);
  return tensor.defined() && tensor.requires_grad() && tensor.is_leaf() &&
         tensor.scalar_type() == c10::kFloat && dtype.isInt() &&
         is_low_precision(static_cast<c10::ScalarType>(dtype.toInt()));
}

at::Tensor autocast_source(const at::Tensor& tensor) {
  // Not for a view, because grad_fn() makes a stale view's node: Note [When a view gets its node].
  if (!is_low_precision(tensor.scalar_type()) || tensor.is_view()) return {};
  const auto& cast = tensor.grad_fn();
  if (!cast || cast->num_outputs() != 1) return {};
  if (cast->name() != "ToCopyBackward0") return {};
  const auto* const leaf =
      dynamic_cast<const torch::autograd::AccumulateGrad*>(cast->next_edge(0).function.get());
  return leaf ? leaf->variable : at::Tensor();
}

void note_autocast(const at::Tensor& cast, const at::Tensor& leaf) {
  // Autocast requests a cast only inside an op that it changes. The sign of such an op is that
  // autocast is off there, while its cache is on.
  const c10::DispatchKey key =
      at::autocast::get_autocast_dispatch_key_from_device_type(leaf.device().type());
  if (at::autocast::is_autocast_cache_enabled() && c10::impl::tls_is_dispatch_key_excluded(key))
    add_cast(cast, leaf);
}

bool is_known_cast(const at::Tensor& cast) {
  return find_cast(cast).has_value();
}

bool is_stale_cast(const at::Tensor& cast, const at::Tensor& leaf) {
  if (const auto version = find_cast(cast))
    return version->changed() || version->has_other_bytes(leaf);
  if (!has_values_of(cast, leaf)) return true;
  add_cast(cast, leaf);
  return false;
}

}  // namespace remat
