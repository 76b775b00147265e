// SPDX-License-Identifier: BSD-3-Clause

// The header and blocks of a recording file. See docs/reference/recording-files.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace remat::detail {

inline constexpr std::string_view kFileMagic = "REMATREC";
inline constexpr uint32_t kFileVersion = 1;
inline constexpr size_t kFileHeaderBytes = 12;   // magic, version
inline constexpr size_t kBlockHeaderBytes = 20;  // magic, thread, bytes, checksum
inline constexpr size_t kMostBlockBytes = size_t{16} << 20U;

/// Thread number of blocks that define the strings and layouts of later blocks.
inline constexpr uint32_t kDefinitions = 0xffffffff;

struct FileBlock {
  uint32_t thread = 0;
  std::string_view events;
};

std::string file_header();
std::string block_header(const FileBlock& block);

/// The version in a file's header; nullopt if the file is no recording.
std::optional<uint32_t> file_version(std::string_view file);

/// The block at the start of `bytes`; nullopt if it is incomplete or damaged.
std::optional<FileBlock> first_block(std::string_view bytes);

}  // namespace remat::detail
