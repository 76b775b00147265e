// SPDX-License-Identifier: BSD-3-Clause

// get_handle() and RematHandle of Python.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstdint>

namespace remat::python {

/// Ends the handles that were taken on this thread while this lived and that are still open: the
/// traceback of an exception may hold them. Goes around every call of user code in a region or
/// named call. Under the GIL.
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
