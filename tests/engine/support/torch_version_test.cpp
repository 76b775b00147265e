// SPDX-License-Identifier: BSD-3-Clause

// LibTorch versions that fit the one for which remat was compiled.
#include "engine/support/torch_version.h"

#include <torch/version.h>

#include "support/catch.h"

using remat::detail::check_torch_version;

TEST_CASE("The LibTorch that is loaded here is the one compiled for", "[tape][torch_version]") {
  CHECK(remat::detail::compiled_torch_version() == TORCH_VERSION);
  CHECK_NOTHROW(check_torch_version(TORCH_VERSION, remat::detail::loaded_torch_version()));
}

TEST_CASE("What follows the minor version does not count", "[tape][torch_version]") {
  for (const char* loaded : {"2.11.0", "2.11.1", "2.11", "2.11.0+cu130", "2.11.0a0+git70d99e9"}) {
    CAPTURE(loaded);
    CHECK_NOTHROW(check_torch_version("2.11.0", loaded));
  }
}

TEST_CASE("Another minor or major version does not fit", "[tape][torch_version]") {
  for (const char* loaded :
       {"2.1.0", "2.10.0", "2.12.0", "2.110.0", "3.11.0", "2", "", "unknown"}) {
    CAPTURE(loaded);
    CHECK_THROWS_AS(check_torch_version("2.11.0", loaded), std::runtime_error);
  }
}

TEST_CASE("The error names both versions and what to do", "[tape][torch_version]") {
  CHECK_THROWS_WITH(
      check_torch_version("2.11.0", "2.12.1+cpu"),
      "[remat] LibTorch: expected version 2.11 (remat was compiled for 2.11.0), got 2.12.1+cpu. "
      "Load LibTorch 2.11 (check LD_LIBRARY_PATH), or compile remat for the one you have.");
}
