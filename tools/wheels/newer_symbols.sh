# SPDX-License-Identifier: BSD-3-Clause

# For bash scripts that run in the project's folder.

# make_newer_symbols FOLDER: builds libnewer_symbols.a there, with the symbols that the oldest supported libraries lack. See
# newer_symbols.cpp.
make_newer_symbols() {
  local source=$PWD/tools/wheels/newer_symbols.cpp
  rm -rf "$1" && mkdir -p "$1"
  (
    cd "$1"
    g++ -std=c++20 -O2 -fPIC -fvisibility=hidden -c "$source"
    ar x "$(g++ -print-file-name=libstdc++.a)" fs_path.o fs_ops.o fs_dir.o floating_from_chars.o condition_variable.o
    ar rcs libnewer_symbols.a ./*.o
  )
}
