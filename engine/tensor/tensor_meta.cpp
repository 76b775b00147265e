// SPDX-License-Identifier: BSD-3-Clause

// Metadata and version of saved tensors.
#include <remat/engine/tensor_meta.h>

#include <c10/core/GradMode.h>

#include <cstring>

#include <remat/engine/flattened_tensor.h>
#include <remat/engine/hash_mix.h>
#include <remat/engine/op_call.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/unseen.h>
#include <remat/engine/unversioned_writes.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

bool has_plain_sizes(const at::Tensor& tensor) {
  return !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

constexpr size_t kFewSamples = 8;
constexpr size_t kManySamples = 64;
constexpr size_t kMostWords = 512;  // With `many`, storages up to this size are hashed whole.

std::optional<uint64_t> sample_storage(const at::Tensor& tensor, bool many);

bool is_quantized_per_channel(const at::Tensor& tensor) {
  if (!tensor.is_quantized()) return false;
  const UnseenBelowAutograd unseen;
  const at::QScheme scheme = tensor.qscheme();
  return scheme != at::kPerTensorAffine && scheme != at::kPerTensorSymmetric;
}

/// Hashes a sparse tensor's indices and values, or a quantized one's scales and zero points.
uint64_t sample_parts(const at::Tensor& tensor) {
  const UnseenBelowAutograd unseen;
  std::vector<at::Tensor> parts = sparse_parts(tensor);
  if (tensor.is_quantized())
    parts = {tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()};
  uint64_t hash = 0;
  for (const at::Tensor& part : parts)
    hash = hash_mix(hash, sample_storage(part, /*many=*/true).value_or(0));
  return hash;
}

/// A hash of a few words spread over the storage, or of more words if `many`; nullopt if the host
/// cannot read the memory.
std::optional<uint64_t> sample_bytes(const c10::Storage& storage, bool many) {
  if (!storage || PlaceholderStorage::is(storage) || !storage.device().is_cpu())
    return std::nullopt;
  // Unchecked access, because the storage of a wrapper has no memory and data_ptr() would throw.
  const auto* const bytes = static_cast<const unsigned char*>(
      storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  if (!bytes || storage.nbytes() == 0) return std::nullopt;
  uint64_t word = 0;
  if (storage.nbytes() < sizeof(word)) {
    std::memcpy(&word, bytes, storage.nbytes());
    return hash_mix(0, word);
  }
  const size_t last = storage.nbytes() - sizeof(word);
  const bool all = many && storage.nbytes() <= kMostWords * sizeof(word);
  const size_t samples = all ? last / sizeof(word) + 1 : many ? kManySamples : kFewSamples;
  const size_t step = all ? sizeof(word) : last / (samples - 1);
  uint64_t hash = 0;
  const auto mix = [&](size_t offset) {
    std::memcpy(&word, bytes + offset, sizeof(word));
    hash = hash_mix(hash, word);
  };
  for (size_t i = 0; i < samples; ++i) mix(step * i);
  if (many) mix(last);
  return hash;
}

/// Samples the tensor's whole storage, so that all its views have the same hash; with `many`, takes
/// more samples, also of the parts of a sparse or quantized tensor.
std::optional<uint64_t> sample_storage(const at::Tensor& tensor, bool many) {
  if (!tensor.is_cpu()) return std::nullopt;
  if (!has_layout(tensor) && !(many && tensor.is_quantized() && tensor.has_storage())) {
    const bool is_sparse = tensor.layout() != c10::kStrided && tensor.layout() != c10::kMkldnn &&
                           !tensor.is_nested() && !is_of_python_class(tensor);
    return many && is_sparse ? std::optional(sample_parts(tensor)) : std::nullopt;
  }
  const auto hash = sample_bytes(tensor.unsafeGetTensorImpl()->unsafe_storage(), many);
  if (!hash || !many || !is_quantized_per_channel(tensor)) return hash;
  return hash_mix(*hash, sample_parts(tensor));
}

}  // namespace

std::string dtype_name(c10::ScalarType dtype) {
  return c10::getDtypeNames(dtype).first;
}

const void* version_counter_of(const at::Tensor& tensor) {
  return version_counter_of(tensor.unsafeGetTensorImpl()->version_counter());
}

// A VariableVersion is a single owning pointer without a public comparison.
const void* version_counter_of(const c10::VariableVersion& version) {
  static_assert(sizeof(version) == sizeof(void*));
  const void* address = nullptr;
  std::memcpy(&address, &version, sizeof(address));
  return address;
}

bool is_parameter(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return false;
  // A view that a custom function makes in its forward counts as a leaf, whatever its base is.
  const bool is_of_graph = tensor.is_view() && tensor._base().requires_grad();
  return is_of_graph ? tensor._base().is_leaf() : tensor.is_leaf();
}

bool is_grad_changed(const at::Tensor& original, bool requires_grad) {
  return c10::GradMode::is_enabled() && original.defined() && original.is_leaf() &&
         original.requires_grad() != requires_grad;
}

TensorMeta::TensorMeta(const at::Tensor& tensor)
    : dtype_(tensor.scalar_type()),
      device_(tensor.device()),
      has_sizes_(has_plain_sizes(tensor)),
      requires_grad_(tensor.requires_grad()),
      is_leaf_(tensor.is_leaf()) {
  if (has_sizes_) sizes_.append(tensor.sizes().begin(), tensor.sizes().end());
}

bool TensorMeta::matches(const at::Tensor& tensor) const {
  return matches_data(tensor) && requires_grad_ == tensor.requires_grad() &&
         is_leaf_ == tensor.is_leaf();
}

bool TensorMeta::matches_data(const at::Tensor& tensor) const {
  if (dtype_ != tensor.scalar_type() || device_ != tensor.device()) return false;
  if (has_sizes_ != has_plain_sizes(tensor)) return false;
  return !has_sizes_ || tensor.sizes() == c10::IntArrayRef(sizes_);
}

std::string TensorMeta::str() const {
  const std::string sizes =
      has_sizes_ ? c10::str(c10::IntArrayRef(sizes_)) : std::string("[sizes unknown]");
  return c10::str(dtype_name(dtype_), " ", sizes, " on ", device_);
}

std::string TensorMeta::place_str() const {
  return c10::str("requires_grad ", requires_grad_ ? "on" : "off",
                  is_leaf_ ? ", a leaf" : ", not a leaf");
}

// Ignores the version of a tensor without elements, because a write has nothing to change there.
SavedVersion::SavedVersion(const at::Tensor& tensor, bool is_from_outside)
    : counter_(has_plain_sizes(tensor) && tensor.numel() == 0
                   ? c10::VariableVersion()
                   : tensor.unsafeGetTensorImpl()->version_counter()),
      writes_(UnversionedWrites::last(tensor)),
      tensor_(tensor.unsafeGetTensorImpl()),
      saved_(counter_.enabled() ? counter_.current_version() : 0),
      is_from_outside_(is_from_outside),
      sample_(is_from_outside || is_parameter(tensor) ? sample_storage(tensor, is_from_outside)
                                                      : std::nullopt) {}

const void* SavedVersion::counter() const {
  return counter_.enabled() ? version_counter_of(counter_) : nullptr;
}

bool SavedVersion::is_written_by_op() const {
  return writes_ == UnversionedWrites::kNever;
}

// The saved version keeps its counter alive, so equal addresses mean the same counter.
bool SavedVersion::is_of(const at::Tensor& tensor) const {
  return counter_.enabled() && version_counter_of(counter_) == version_counter_of(tensor);
}

void SavedVersion::give_to(const at::Tensor& tensor) const {
  if (!counter_.enabled() || tensor.is_inference() || is_of(tensor)) return;
  tensor.unsafeGetTensorImpl()->set_version_counter(counter_);
}

bool SavedVersion::changed_in(const at::Tensor& tensor) const {
  return is_of(tensor) && (changed() || has_other_bytes(tensor));
}

bool SavedVersion::has_other_bytes(const at::Tensor& tensor) const {
  // Freed memory counts as unchanged, because code that reads such memory raises anyway.
  return sample_ && !is_freed(tensor) && sample_storage(tensor, is_from_outside_) != sample_;
}

bool SavedVersion::has_other_bytes(const c10::Storage& storage) const {
  const bool has_memory = storage && storage.nbytes() > 0;  // Freed if false.
  return sample_ && has_memory && sample_bytes(storage, is_from_outside_) != sample_;
}

std::string SavedVersion::str() const {
  if (!changed()) return "was written without a new version, through data()";
  return c10::str("is at version ", counter_.enabled() ? counter_.current_version() : 0,
                  "; expected version ", saved_, " instead");
}

std::string modified_in_place(const TensorMeta& meta, const SavedVersion& version) {
  return c10::str(
      "one of the variables needed for gradient computation has been modified by an inplace "
      "operation: [",
      meta.str(), "] ", version.str(), ". ");
}

}  // namespace remat
