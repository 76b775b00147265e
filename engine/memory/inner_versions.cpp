// SPDX-License-Identifier: BSD-3-Clause

// Comparing the inner tensors of a tensor with their noted versions.
#include <remat/engine/inner_versions.h>

#include <c10/util/Exception.h>

#include <algorithm>

#include <remat/engine/held_storage.h>
#include <remat/engine/op_call.h>
#include <remat/engine/tensor_layout.h>

namespace remat {
namespace {

/// False for inference tensors (no version) and subclasses, whose inner tensors are watched.
bool is_watched(const at::Tensor& inner) {
  return !inner.is_inference() && !is_of_python_class(inner);
}

}  // namespace

InnerVersions::InnerVersions(const at::Tensor& tensor) {
  for (const at::Tensor& inner : inner_tensors(tensor)) {
    if (is_watched(inner))
      all_.push_back(
          {memory_of(inner), TensorMeta(inner), SavedVersion(inner, /*is_from_outside=*/true)});
  }
}

std::vector<const void*> InnerVersions::memories(c10::ArrayRef<at::Tensor> inner) {
  std::vector<const void*> memories;
  for (const at::Tensor& tensor : inner) {
    if (is_watched(tensor)) memories.push_back(memory_of(tensor));
  }
  return memories;
}

std::vector<const void*> InnerVersions::memories() const {
  std::vector<const void*> memories;
  for (const Inner& inner : all_) memories.push_back(inner.memory);
  return memories;
}

bool InnerVersions::changed() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Inner& inner) { return inner.version.changed(); });
}

bool InnerVersions::have(c10::ArrayRef<const void*> memories) const {
  return !all_.empty() &&
         std::equal(all_.begin(), all_.end(), memories.begin(), memories.end(),
                    [](const Inner& inner, const void* memory) { return inner.memory == memory; });
}

void InnerVersions::check_unchanged(const at::Tensor& tensor, bool may_be_copy,
                                    c10::function_ref<std::string()> where) const {
  if (all_.empty()) return;
  size_t number = 0;
  for (const at::Tensor& inner : inner_tensors(tensor)) {
    if (!is_watched(inner)) continue;
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
