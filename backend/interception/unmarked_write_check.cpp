// SPDX-License-Identifier: BSD-3-Clause

// Comparing arguments before and after an op.
#include "unmarked_write_check.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <string>

#include <remat/engine/region.h>
#include <remat/engine/scope.h>
#include <remat/engine/tensor_meta.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

constexpr size_t kWords = 64;  // Most words of a storage that are sampled.

std::optional<uint32_t> version_of(const at::Tensor& tensor) {
  if (tensor.is_inference()) return std::nullopt;
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

/// A hash of words sampled from the tensor's storage; nullopt if the host cannot read it.
std::optional<uint64_t> sample_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage()) return std::nullopt;
  const c10::Storage& storage = tensor.storage();
  if (PlaceholderStorage::is(storage) || !storage.data()) return std::nullopt;
  const auto* const bytes = static_cast<const unsigned char*>(storage.data());
  const size_t size = storage.nbytes();
  const size_t word = std::min(size, sizeof(uint64_t));
  const size_t count = std::min(kWords, (size + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  uint64_t hash = 0;
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    const size_t place = count > 1 ? (size - word) / (count - 1) * i : 0;
    std::memcpy(&bits, bytes + std::min(place, size - word), word);
    hash = (hash ^ bits) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32U;
  }
  return hash;
}

std::string region_in_which_this_is() {
  const Scope* const scope = Scope::innermost_with_calls();
  const Region* const region = scope ? scope->region() : nullptr;
  return region ? region->label() : "a region";
}

}  // namespace

UnmarkedWriteCheck::UnmarkedWriteCheck(const OpCall& call) {
  c10::SmallVector<const void*, 4> written;
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (call.writes_argument(i)) written.push_back(memory_of(tensor));
  });
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    const void* const memory = memory_of(tensor);
    if (!memory || std::find(written.begin(), written.end(), memory) != written.end()) return;
    arguments_.push_back({i, tensor, version_of(tensor), sample_of(tensor)});
  });
}

void UnmarkedWriteCheck::check(const OpInfo& info) const {
  for (const Argument& argument : arguments_) {
    const bool is_written = version_of(argument.tensor) != argument.version ||
                            sample_of(argument.tensor) != argument.sample;
    TORCH_CHECK_NOT_IMPLEMENTED(
        !is_written, "[checkpoint] ", region_in_which_this_is(), ", op ", info.name(),
        ", argument '", info.op().schema().arguments()[argument.number].name(), "' (",
        TensorMeta(argument.tensor).str(),
        "): expected ops that mark in their schema what they write, got one that has written this "
        "argument unmarked: a replay would start from what it has left. Define the op with its "
        "mutates_args (Tensor(a!) in a schema), or call it outside of the region.");
  }
}

}  // namespace remat
