// SPDX-License-Identifier: BSD-3-Clause

// Tensors that count as the same saved tensor, and the versions that autograd saw.
#include <remat/engine/tensor_meta.h>

#include "support/catch.h"

#include <torch/torch.h>

namespace {

using remat::SavedVersion;
using remat::TensorMeta;

TEST_CASE("Shape, dtype and device tell tensors apart; strides and values do not",
          "[tape][tensor_meta]") {
  const TensorMeta meta(at::zeros({2, 3}));
  CHECK(meta.matches(at::ones({2, 3})));
  CHECK(meta.matches(at::ones({3, 2}).t()));
  CHECK_FALSE(meta.matches(at::zeros({3, 2})));
  CHECK_FALSE(meta.matches(at::zeros({6})));
  CHECK_FALSE(meta.matches(at::zeros({2, 3}, at::kDouble)));
  CHECK_FALSE(meta.matches(at::zeros({2, 3}, at::kMeta)));
}

TEST_CASE("Metadata reads as users write it", "[tape][tensor_meta]") {
  CHECK(TensorMeta(at::zeros({2, 3})).str() == "float32 [2, 3] on cpu");
  CHECK(TensorMeta(at::zeros({}, at::kLong)).str() == "int64 [] on cpu");
  CHECK(TensorMeta(at::zeros({0}, at::kBFloat16)).str() == "bfloat16 [0] on cpu");
  CHECK(TensorMeta(at::zeros({1}, at::kBool)).str() == "bool [1] on cpu");
  CHECK(TensorMeta(at::empty({1}, at::TensorOptions(at::kMeta).dtype(at::kComplexFloat))).str() ==
        "complex64 [1] on meta");
}

TEST_CASE("Nested tensors have a dtype and a device", "[tape][tensor_meta]") {
  const at::Tensor nested =
      at::_nested_tensor_from_tensor_list({at::ones({1, 2}), at::ones({2, 2})});
  const TensorMeta meta(nested);
  CHECK(meta.matches(at::_nested_tensor_from_tensor_list({at::ones({5, 2})})));
  CHECK_FALSE(meta.matches(at::ones({3, 2})));
  CHECK(meta.str() == "float32 [sizes unknown] on cpu");
}

TEST_CASE("Sparse tensors have shapes", "[tape][tensor_meta]") {
  const TensorMeta meta(at::eye(3).to_sparse());
  CHECK(meta.matches(at::eye(3).to_sparse()));
  CHECK_FALSE(meta.matches(at::eye(2).to_sparse()));
}

TEST_CASE("A version changes when the tensor or a view of it is written", "[tape][tensor_meta]") {
  const at::Tensor tensor = torch::zeros({4});
  const SavedVersion version(tensor);
  CHECK_FALSE(version.changed());
  SECTION("itself") {
    tensor.add_(1);
  }
  SECTION("a view") {
    tensor[0].fill_(1);
  }
  SECTION("detached") {
    tensor.detach().zero_();
  }
  CHECK(version.changed());
  CHECK(version.str() == "is at version 1; expected version 0 instead");
}

TEST_CASE("A write counts for the tensor and its views, not for equal tensors and copies",
          "[tape][tensor_meta]") {
  const at::Tensor tensor = at::zeros({4});
  const SavedVersion version(tensor);
  CHECK_FALSE(version.changed_in(tensor));
  tensor.add_(1);
  CHECK(version.changed_in(tensor));
  CHECK(version.changed_in(tensor.view({2, 2})));
  CHECK(version.changed_in(tensor.tensor_data()));
  CHECK_FALSE(version.changed_in(tensor.variable_data()));  // has its own version counter
  CHECK_FALSE(version.changed_in(tensor.clone()));
}

TEST_CASE("A parameter that was written through data() has changed, although no version says so",
          "[tape][tensor_meta]") {
  const int64_t size = GENERATE(1, 7, 1000);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const at::Tensor parameter = torch::ones({size}, dtype).requires_grad_();
  const SavedVersion version(parameter);
  CHECK_FALSE(version.changed_in(parameter));
  parameter.data().mul_(0.5);
  CHECK_FALSE(version.changed());
  CHECK(version.changed_in(parameter));
  CHECK(version.str() == "was written without a new version, through data()");
  parameter.data().mul_(2);
  CHECK_FALSE(version.changed_in(parameter));
}

TEST_CASE("A write through data() is seen in a view of a parameter that autograd saved",
          "[tape][tensor_meta]") {
  const at::Tensor parameter = torch::ones({3, 5}).requires_grad_();
  const at::Tensor transposed = parameter.t();  // saved by linear
  const SavedVersion version(transposed);
  CHECK_FALSE(version.changed_in(parameter.t()));
  parameter.data().mul_(0.5);
  CHECK(version.changed_in(transposed));
}

TEST_CASE("Writes through data() to what is no parameter, or cannot be read, are not looked for",
          "[tape][tensor_meta]") {
  const at::Tensor buffer = torch::ones({4});
  const at::Tensor empty = torch::ones({0}).requires_grad_();
  const at::Tensor meta = at::empty({4}, at::kMeta).requires_grad_();
  for (const at::Tensor& tensor : {buffer, empty, meta}) {
    const SavedVersion version(tensor);
    tensor.data().mul_(2);
    CHECK_FALSE(version.changed_in(tensor));
  }
}

TEST_CASE("An inference tensor has no version, so it never changes", "[tape][tensor_meta]") {
  const c10::InferenceMode inference;
  const at::Tensor tensor = at::zeros({4});
  const SavedVersion version(tensor);
  tensor.add_(1);
  CHECK_FALSE(version.changed());
  CHECK_FALSE(version.changed_in(tensor));
}

TEST_CASE("A version does not hold its tensor", "[tape][tensor_meta]") {
  at::Tensor tensor = at::zeros({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(
      tensor.getIntrusivePtr());
  const SavedVersion version(tensor);
  tensor.reset();
  CHECK(weak.expired());
  CHECK_FALSE(version.changed());
}

}  // namespace
