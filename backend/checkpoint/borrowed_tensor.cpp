// SPDX-License-Identifier: BSD-3-Clause

// Checking that a borrowed tensor is still the one that the forward read.
#include <remat/backend/borrowed_tensor.h>

#include <c10/util/Exception.h>

namespace remat::detail {

BorrowedTensor::BorrowedTensor(const at::Tensor& variable)
    : variable_(&variable), tensor_(variable.getIntrusivePtr()), version_(variable) {}

void BorrowedTensor::check_unchanged() const {
  const bool same = tensor_.lock().get() == variable_->unsafeGetTensorImpl();
  TORCH_CHECK(same,
              "[replay] tensor passed by std::ref: expected the tensor that the forward read, got "
              "another one assigned to the variable since. Pass it by value, or do not assign to "
              "it before backward.");
  TORCH_CHECK(!version_.changed_in(*variable_), modified_in_place(TensorMeta(*variable_), version_),
              "[replay] tensor passed by std::ref: expected it as the forward read it. Do not "
              "write it between forward and backward, or pass a clone by value.");
}

}  // namespace remat::detail
