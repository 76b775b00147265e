// SPDX-License-Identifier: BSD-3-Clause

// Asking tensors in tensors.
#include <remat/tape/inner_versions.h>

#include <c10/util/Exception.h>

#include <remat/tape/held_storage.h>
#include <remat/tape/op_call.h>
#include <remat/tape/tensor_layout.h>

namespace remat {
InnerVersions::InnerVersions(const at::Tensor& tensor) {
  for (const at::Tensor& inner : inner_tensors(tensor)) {
    if (!inner.is_inference())
      all_.push_back(
          {memory_of(inner), TensorMeta(inner), SavedVersion(inner, /*is_from_outside=*/true)});
  }
}

void InnerVersions::check_unchanged(const at::Tensor& tensor, bool may_be_copy,
                                    c10::function_ref<std::string()> where) const {
  if (all_.empty()) return;
  size_t number = 0;
  for (const at::Tensor& inner : inner_tensors(tensor)) {
    if (inner.is_inference()) continue;
    const Inner* const before = number < all_.size() ? &all_[number] : nullptr;
    ++number;
    TORCH_CHECK(!is_freed(inner), where(), " (a tensor in one of a Python class of its own, ",
                TensorMeta(inner).str(), "): ", kMemoryFreed, kGiveMemoryBack);
    const bool is_same = before && before->memory == memory_of(inner);
    TORCH_CHECK(is_same || may_be_copy, where(),
                ": expected the tensor of a Python class of its own to hold the tensors that it "
                "held in the forward, got another one (",
                TensorMeta(inner).str(),
                "). Do not exchange them between forward and backward, or make a new one.");
    const bool changed =
        is_same && (before->version.changed() || before->version.has_other_bytes(inner));
    TORCH_CHECK(!changed, modified_in_place(before->meta, before->version), where(),
                ": expected the tensors in one of a Python class of its own as the forward read "
                "them. Do not write them in the region or between forward and backward, or pass a "
                "clone.");
  }
}

}  // namespace remat
