// SPDX-License-Identifier: BSD-3-Clause

// Checking that a tensor passed by std::ref is still the tensor that the forward read, unchanged.
#include <remat/backend/borrowed_tensor.h>

#include <c10/util/Exception.h>

#include <remat/engine/tensor_meta.h>

namespace remat::detail {

struct BorrowedTensor::Lent {
  explicit Lent(const at::Tensor& lent)
      : variable(&lent), tensor(lent.getIntrusivePtr()), version(lent) {}

  const at::Tensor* variable;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  SavedVersion version;
};

BorrowedTensor::BorrowedTensor(const at::Tensor& variable)
    : lent_(std::make_shared<const Lent>(variable)) {}

void BorrowedTensor::check_unchanged() const {
  const auto& [variable, tensor, version] = *lent_;
  const bool same = tensor.lock().get() == variable->unsafeGetTensorImpl();
  TORCH_CHECK(same,
              "[replay] tensor passed by std::ref: expected the tensor that the forward read, got "
              "another one assigned to the variable since. Pass it by value, or do not assign to "
              "it before backward.");
  TORCH_CHECK(!version.changed_in(*variable), modified_in_place(TensorMeta(*variable), version),
              "[replay] tensor passed by std::ref: expected it as the forward read it. Do not "
              "write it between forward and backward, or pass a clone by value.");
}

}  // namespace remat::detail
