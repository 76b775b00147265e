// SPDX-License-Identifier: BSD-3-Clause

// Calls by which ranks compare their regions: see remat_meta._agreement and _collective_watch.
#pragma once

#include <torch/csrc/python_headers.h>

#include <string>

#include "settings.h"

namespace remat::python {

/// Tells the agreement, if there is one, that a region of `function` is about to run, unless the
/// last region with these settings had the same function. Throws python_error.
void tell_agreement(const Settings& settings, PyObject* function);

/// Reports the run of a region's function to the watch of collectives, if there is one. Use under
/// the GIL.
class WatchedRun {
 public:
  /// Throws python_error.
  WatchedRun(const std::string& region, PyObject* function, bool is_replay);
  WatchedRun(const WatchedRun&) = delete;
  WatchedRun& operator=(const WatchedRun&) = delete;
  /// Reports a run that neither finished nor failed because C++ threw.
  ~WatchedRun();

  /// Call when the function has returned or its replay was stopped. Throws python_error.
  void finish();

  /// Call when the function has raised the Python error that is set; it stays set.
  void fail();

 private:
  bool open_;
};

/// Adds _set_agreement() and _set_collective_watch() to `module`.
void add_agreement(PyObject* module);

}  // namespace remat::python
