// SPDX-License-Identifier: BSD-3-Clause

// Hashes of tensors' elements do not depend on their layout.
#include <remat/engine/tensor_hash.h>

#include <remat/inspect/memory_meter.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "support/catch.h"

namespace {

using remat::hash_of;

/// Elements whose bytes differ from those of their neighbours, as far as the dtype has enough
/// values.
at::Tensor numbers(at::ScalarType dtype) {
  const at::Tensor all = at::arange(9 * 8 * 11).view({9, 8, 11});
  if (at::isComplexType(dtype))
    return at::complex(all.to(at::kFloat), all.add(3).to(at::kFloat)).to(dtype);
  return dtype == at::kBool ? all.remainder(7).lt(3) : all.remainder(251).to(dtype);
}

/// Returns views, each with more bytes than are hashed at a time.
std::vector<std::pair<const char*, at::Tensor>> views_of(const at::Tensor& tensor) {
  const at::Tensor negated = tensor.is_floating_point() ? tensor._neg_view() : tensor;
  return {{"whole", tensor},
          {"negated", negated},
          {"a part, negated", negated.narrow(1, 2, 5)},
          {"conjugated", tensor.conj()},
          {"transposed and conjugated", tensor.transpose(0, 2).conj()},
          {"transposed", tensor.transpose(0, 2)},
          {"every other column", tensor.slice(2, 0, 11, 2)},
          {"a part", tensor.narrow(1, 2, 5).narrow(2, 3, 7)},
          {"expanded", tensor.select(1, 3).unsqueeze(1).expand({9, 8, 11})},
          {"one element", tensor.select(0, 4).select(0, 3).select(0, 2).expand({40, 30})},
          {"overlapping", tensor.as_strided({20, 30}, {3, 1})}};
}

}  // namespace

TEST_CASE("A tensor has the hash of its contiguous copy, and the hash takes no memory",
          "[tape][tensor_hash]") {
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    for (const auto& [name, view] : views_of(numbers(dtype))) {
      INFO(c10::toString(dtype) << ", " << name);
      const at::Tensor copy = view.clone(at::MemoryFormat::Contiguous);
      const remat::MemoryMeter meter;
      const uint64_t hash = hash_of(view);
      CHECK(meter.peak_bytes() == 0);
      CHECK(hash == hash_of(copy));
      at::Tensor last = copy.flatten()[-1];
      last.copy_(last.eq(0));
      CHECK(hash != hash_of(copy));
    }
  }
}
