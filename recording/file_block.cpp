// SPDX-License-Identifier: BSD-3-Clause

#include "file_block.h"

namespace remat::detail {
namespace {

constexpr uint32_t kBlockMagic = 0x4b4c4252;  // "RBLK"

void put(std::string& bytes, uint64_t value, unsigned size) {
  for (unsigned i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t get(std::string_view bytes, size_t at, unsigned size) {
  uint64_t value = 0;
  for (unsigned i = 0; i < size; ++i)
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

/// FNV-1a over the thread's number, then words of eight bytes, then single bytes. Each sum is
/// folded, because multiplication moves bits up only. http://www.isthe.com/chongo/tech/comp/fnv/
uint64_t checksum(const FileBlock& block) {
  uint64_t sum = 0xcbf29ce484222325 ^ block.thread;
  const auto add = [&](uint64_t word) {
    sum = (sum ^ word) * 0x100000001b3;
    sum ^= sum >> 32U;
  };
  size_t at = 0;
  for (; at + 8 <= block.events.size(); at += 8) add(get(block.events, at, 8));
  for (; at < block.events.size(); ++at) add(static_cast<unsigned char>(block.events[at]));
  return sum;
}

}  // namespace

std::string file_header() {
  std::string bytes(kFileMagic);
  put(bytes, kFileVersion, 4);
  return bytes;
}

std::string block_header(const FileBlock& block) {
  std::string bytes;
  put(bytes, kBlockMagic, 4);
  put(bytes, block.thread, 4);
  put(bytes, block.events.size(), 4);
  put(bytes, checksum(block), 8);
  return bytes;
}

std::optional<uint32_t> file_version(std::string_view file) {
  if (file.size() < kFileHeaderBytes || file.substr(0, kFileMagic.size()) != kFileMagic)
    return std::nullopt;
  return static_cast<uint32_t>(get(file, kFileMagic.size(), 4));
}

std::optional<FileBlock> first_block(std::string_view bytes) {
  if (bytes.size() < kBlockHeaderBytes || get(bytes, 0, 4) != kBlockMagic) return std::nullopt;
  const size_t size = get(bytes, 8, 4);
  if (size > kMostBlockBytes || size > bytes.size() - kBlockHeaderBytes) return std::nullopt;
  const FileBlock block{static_cast<uint32_t>(get(bytes, 4, 4)),
                        bytes.substr(kBlockHeaderBytes, size)};
  if (get(bytes, 12, 8) != checksum(block)) return std::nullopt;
  return block;
}

}  // namespace remat::detail
