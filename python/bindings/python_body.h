// SPDX-License-Identifier: BSD-3-Clause

// A Python function that a region replays.
#pragma once

#include <remat/engine/region_body.h>

#include <memory>
#include <string>
#include <vector>

#include "argument_tree.h"
#include "python_state.h"

namespace remat::python {

/// A callable with its arguments, and the state of Python at the call. Construct under the GIL; the
/// other functions take the GIL themselves.
class PythonBody final : public RegionBody {
 public:
  /// Moves the tensors of `arguments` to `inputs`. `region` is the region's name. Throws
  /// python_error.
  PythonBody(PyObject* function, const CallArguments& arguments, std::string region,
             std::vector<at::Tensor>& inputs);
  ~PythonBody() override;

  /// Call after the function's forward. Needs the GIL.
  void finish_forward();

  size_t identity() const override { return identity_; }
  std::shared_ptr<const void> run(c10::ArrayRef<at::Tensor> inputs) const override;
  std::unique_ptr<KeptHooks> keep_hooks(c10::ArrayRef<at::Tensor> tensors) const override;
  void stop() const override;
  bool outranks_stop(const std::exception_ptr& escaped) const override;
  [[noreturn]] void rethrow(const std::exception_ptr& error,
                            const std::exception_ptr& escaped) const override;

 private:
  struct Parts;

  size_t identity_;
  std::unique_ptr<Parts> parts_;  // destroyed under the GIL
};

}  // namespace remat::python
