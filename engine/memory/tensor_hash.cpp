// SPDX-License-Identifier: BSD-3-Clause

// Hashing contiguous and strided elements word by word.
#include <remat/engine/tensor_hash.h>

#include <array>
#include <cstring>
#include <optional>

#include <remat/engine/tensor_layout.h>
#include <remat/placeholder/placeholder_impl.h>

#include <ATen/ops/_to_copy.h>

#include <remat/engine/hash_mix.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/unseen.h>

namespace remat {

namespace {

/// Hashes bytes in pieces. All pieces but the last must be whole words.
class BytesHash {
 public:
  explicit BytesHash(size_t total) : hash_(total) {}

  void add(const char* bytes, size_t size) {
    size_t i = 0;
    for (uint64_t word = 0; i + sizeof(word) <= size; i += sizeof(word)) {
      std::memcpy(&word, bytes + i, sizeof(word));
      hash_ = hash_mix(hash_, word);
    }
    if (i < size) std::memcpy(&rest_, bytes + i, size - i);
  }

  uint64_t finish() const { return hash_mix(hash_, rest_); }

 private:
  uint64_t hash_;
  uint64_t rest_ = 0;
};

/// Hashes elements that are not contiguous or have lazy signs (conjugated and negated views) like a
/// contiguous copy with the signs applied. Makes no such copy, because its memory would count in
/// the measured peaks of the steps being compared.
class StridedHash {
 public:
  explicit StridedHash(const at::Tensor& tensor)
      : sizes_(tensor.sizes()),
        strides_(tensor.strides()),
        item_(tensor.itemsize()),
        hash_(tensor.nbytes()) {
    // The sign is in the highest byte of the number, or of its imaginary part.
    if (tensor.is_neg() || tensor.is_conj()) sign_ = item_ - 1;
  }

  uint64_t of(const char* first) {
    walk(0, first);
    hash_.add(buffer_.data(), filled_);
    return hash_.finish();
  }

 private:
  // The recursion is bounded by the number of dimensions.
  void walk(size_t dim, const char* from) {  // NOLINT(misc-no-recursion)
    if (dim == sizes_.size()) return add(from);
    const int64_t step = strides_[dim] * static_cast<int64_t>(item_);
    for (int64_t i = 0; i < sizes_[dim]; ++i, from += step) walk(dim + 1, from);
  }

  // Element sizes are powers of two, so they fill the buffer exactly.
  void add(const char* element) {
    std::memcpy(buffer_.data() + filled_, element, item_);
    if (sign_) buffer_[filled_ + *sign_] ^= static_cast<char>(0x80);
    filled_ += item_;
    if (filled_ < buffer_.size()) return;
    hash_.add(buffer_.data(), filled_);
    filled_ = 0;
  }

  const at::IntArrayRef sizes_;
  const at::IntArrayRef strides_;
  const size_t item_;
  std::optional<size_t> sign_;  // Byte of an element whose highest bit is flipped.
  BytesHash hash_;
  std::array<char, 512> buffer_{};
  size_t filled_ = 0;
};

}  // namespace

uint64_t hash_of_bytes(const void* bytes, size_t size) {
  BytesHash hash(size);
  hash.add(static_cast<const char*>(bytes), size);
  return hash.finish();
}

uint64_t hash_of(const at::Tensor& tensor) {
  if (!has_layout(tensor) || tensor.numel() == 0 || tensor.is_quantized()) return 0;
  if (PlaceholderStorage::is(tensor.storage()) || is_freed(tensor) || tensor.is_meta()) return 0;
  if (!tensor.is_cpu() && !has_memory(tensor.storage())) return 0;
  const UnseenBelowAutograd unseen;
  // StridedHash negates by flipping the sign bit. Integers have none, and LibTorch does not negate
  // the zeros of complex numbers, so for both a negated view is resolved first.
  const bool has_sign = at::isFloatingType(tensor.scalar_type());
  at::Tensor data = has_sign ? tensor : tensor.resolve_neg();
  if (!data.is_cpu()) data = at::_to_copy(data, data.options().device(c10::kCPU));
  if (!data.storage().data()) return 0;
  const auto* const first = static_cast<const char*>(data.const_data_ptr());
  const bool lies_so = data.is_contiguous() && !data.is_conj() && !data.is_neg();
  return lies_so ? hash_of_bytes(first, data.nbytes()) : StridedHash(data).of(first);
}

uint64_t hash_of(c10::ArrayRef<at::Tensor> tensors) {
  uint64_t hash = tensors.size();
  for (const at::Tensor& tensor : tensors) {
    const bool has_values = tensor.defined() && tensor.is_cpu();
    hash = hash_mix(hash, has_values ? hash_of(tensor) : 0);
  }
  return hash;
}

}  // namespace remat
