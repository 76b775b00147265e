// SPDX-License-Identifier: BSD-3-Clause

// Reading REMAT_POLICY and REMAT_REPLAY.
#include <remat/backend/environment_policy.h>

#include <c10/util/Exception.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace remat {
namespace {

PolicyTable read_table(const std::string& value) {
  const bool is_path = value.find_first_of("/.") != std::string::npos;
  return is_path ? PolicyTable::load(value) : preset(value);
}

std::shared_ptr<const RegionPolicy> read_environment() {
  const char* const value = std::getenv("REMAT_POLICY");
  if (!value || !*value) return nullptr;
  try {
    return make_policy(read_table(value));
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "[checkpoint] REMAT_POLICY=", value,
                      ": expected a preset or the path of a JSON file. Correct it or unset it. ",
                      error.what());
  }
}

bool read_replay() {
  const char* const value = std::getenv("REMAT_REPLAY");
  const std::string engine = value ? value : "";
  TORCH_CHECK_VALUE(engine.empty() || engine == "auto" || engine == "function",
                    "[checkpoint] REMAT_REPLAY=", engine,
                    ": expected \"auto\" or \"function\". Correct it or unset it.");
  return engine == "auto";
}

}  // namespace

bool environment_wants_tapes() {
  static const bool wants = read_replay();
  return wants;
}

std::shared_ptr<const RegionPolicy> policy_of_environment() {
  static const std::shared_ptr<const RegionPolicy> policy = read_environment();
  return policy;
}

}  // namespace remat
