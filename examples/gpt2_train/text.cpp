// SPDX-License-Identifier: BSD-3-Clause

// Reads text from files and draws samples from it.
#include "text.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>
#include <vector>

namespace gpt2_train {

namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (auto entry = fs::recursive_directory_iterator(folder);
       entry != fs::recursive_directory_iterator(); ++entry) {
    if (hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file()) {
      files.push_back(entry->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::invalid_argument("--text " + path.string() +
                                ": expected a readable file, got an error on opening it.");
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string read_text(const fs::path& path) {
  if (fs::is_regular_file(path)) {
    return read_file(path);
  }
  if (!fs::is_directory(path)) {
    throw std::invalid_argument("--text " + path.string() +
                                ": expected a file or folder, got neither. Check the path.");
  }
  std::string text;
  for (const fs::path& file : files_below(path)) {
    text += read_file(file);
  }
  return text;
}

BatchSampler::BatchSampler(std::string text, int64_t batch, int64_t sequence, uint64_t seed)
    : text_(std::move(text)), batch_(batch), sequence_(sequence), random_(seed) {
  if (static_cast<int64_t>(text_.size()) <= sequence_) {
    throw std::invalid_argument(
        "--text: expected more than --sequence " + std::to_string(sequence_) + " bytes, got " +
        std::to_string(text_.size()) + ". Give a longer text or a shorter sequence.");
  }
}

Batch BatchSampler::next() {
  const auto places = static_cast<uint64_t>(static_cast<int64_t>(text_.size()) - sequence_);
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < batch_; ++i) {
    // Modulo, since std distributions differ between libraries. A sample's last byte is only a
    // target.
    char* start = text_.data() + random_() % places;
    samples.push_back(torch::from_blob(start, {sequence_ + 1}, torch::kUInt8).to(torch::kInt64));
  }
  const at::Tensor bytes = torch::stack(samples);
  return {bytes.slice(1, 0, sequence_).contiguous(), bytes.slice(1, 1).contiguous()};
}

}  // namespace gpt2_train
