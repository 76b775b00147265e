// SPDX-License-Identifier: BSD-3-Clause

// What ranks tell each other of their regions: see remat_meta._agreement and _collective_watch.
#pragma once

#include <torch/csrc/python_headers.h>

#include <string>

#include "settings.h"

namespace remat::python {

/// A region of `function` is about to run: tells the agreement, if there is one, unless the last
/// region with these settings had the same function. Throws python_error.
void tell_agreement(const Settings& settings, PyObject* function);

/// A run of a region's function, while alive, for the watch of collectives, if there is one. Under
/// the GIL.
class WatchedRun {
 public:
  /// Throws python_error.
  WatchedRun(const std::string& region, PyObject* function, bool is_replay);
  WatchedRun(const WatchedRun&) = delete;
  WatchedRun& operator=(const WatchedRun&) = delete;
  /// Of a run that neither finished nor failed: C++ has thrown.
  ~WatchedRun();

  /// The function has returned, or its replay was stopped. Throws python_error.
  void finish();

  /// The function has thrown the Python error that is set, which stays so.
  void fail();

 private:
  bool open_;
};

/// Adds _set_agreement() and _set_collective_watch() to `module`.
void add_agreement(PyObject* module);

}  // namespace remat::python
