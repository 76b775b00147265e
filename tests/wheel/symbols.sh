#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# symbols.sh BUILD: fails if the compiled code needs symbols of glibc or libstdc++ that are newer than manylinux_2_28 and not in
# tools/wheels/newer_symbols.cpp: tools/build_wheels.sh would refuse the wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/wheels/newer_symbols.sh

readonly newer='@(GLIBC_2\.(29|[3-9][0-9])|GLIBCXX_3\.4\.(2[5-9]|[3-9][0-9])|CXXABI_1\.3\.(1[2-9]|[2-9][0-9]))$'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_newer_symbols "$folder/made"
nm --defined-only "$folder/made/libnewer_symbols.a" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$folder/defined"

status=0
count=0
for library in "$1"/libremat*.so "$1"/python/remat_meta/torch_*/*.so; do
  [ -e "$library" ] || continue
  count=$((count + 1))
  nm -D --undefined-only "$library" | awk '{ print $NF }' | { grep -E "$newer" || true; } >"$folder/asked"
  while IFS=@ read -r symbol version; do
    grep -qxF "$symbol" "$folder/defined" && continue
    echo "$library: $(c++filt "$symbol") of $version: expected symbols of manylinux_2_28, got a newer one. Leave it out, or add it to tools/wheels/newer_symbols.cpp"
    status=1
  done <"$folder/asked"
done
echo "$count libraries looked at"
[ "$count" -gt 0 ] || status=1
exit "$status"
