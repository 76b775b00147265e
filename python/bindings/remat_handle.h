// SPDX-License-Identifier: BSD-3-Clause

// Python's get_handle() and RematHandle.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstdint>

namespace remat::python {

/// Ends the handles that were opened on this thread during its lifetime and are still open, since
/// the traceback of an exception may hold them. Surrounds every call of user code in a region or
/// named call. Use under the GIL.
class HandleBound {
 public:
  HandleBound();
  HandleBound(const HandleBound&) = delete;
  HandleBound& operator=(const HandleBound&) = delete;
  ~HandleBound();

 private:
  uint64_t opened_before_;
};

/// Adds RematHandle, get_handle() and save_for_backward() to `module`. Throws python_error.
void add_remat_handle(PyObject* module);

}  // namespace remat::python
