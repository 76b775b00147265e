// SPDX-License-Identifier: BSD-3-Clause

// Preloaded, it makes LibTorch claim to be version 2.99.0.
#include <map>
#include <string>

namespace caffe2 {

__attribute__((visibility("default"))) const std::map<std::string, std::string>& GetBuildOptions();

const std::map<std::string, std::string>& GetBuildOptions() {
  static const std::map<std::string, std::string> options = {{"TORCH_VERSION", "2.99.0"}};
  return options;
}

}  // namespace caffe2
