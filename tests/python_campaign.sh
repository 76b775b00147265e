#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# python_campaign.sh PYTHON PYTHONPATH RECORD_DIR: all of torch's op samples, then 100,000 random Python programs, in
# shards that are not run again for the same package once they have passed.
#
# REMAT_CAMPAIGN_SHARDS: shards (default 20). REMAT_FUZZ_N: programs per shard (default 5000).
set -euo pipefail

python=$1
export PYTHONPATH=$2 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
record_dir=$3
shards=${REMAT_CAMPAIGN_SHARDS:-20}
programs=${REMAT_FUZZ_N:-5000}
cd "$(dirname "${BASH_SOURCE[0]}")/../python/tests"
mkdir -p "$record_dir"

package=$("$python" -c 'import remat_meta, os; print(os.path.dirname(remat_meta.__file__))')
binary=$(find -L "$package" "$package/../.." -maxdepth 2 \( -name '_C.*.so' -o -name 'libremat_*.so.*' \) -type f -print0 |
  sort -z | xargs -0 cat | cat - fuzz/*.py opinfo/*.py | sha256sum | cut -c1-12)

# piece NAME COMMAND...: runs the command unless it passed before; true if it passes.
piece() {
  local record=$record_dir/python-$1-$binary
  shift
  [ -e "$record.passed" ] && return
  echo "[campaign] ${record##*/}: $*"
  if "$@" >"$record.txt" 2>&1; then
    touch "$record.passed"
  else
    tail -n 30 "$record.txt"
    return 1
  fi
}

failures=0
for ((shard = 0; shard < shards; ++shard)); do
  piece "opinfo-$shard-of-$shards" env REMAT_OPINFO_SAMPLES=0 REMAT_OPINFO_SHARD="$shard/$shards" \
    "$python" -m pytest -q -p no:cacheprovider opinfo/ || failures=$((failures + 1))
  piece "fuzz-$shard-$programs" "$python" -m fuzz --seed "$((shard * programs))" --count "$programs" ||
    failures=$((failures + 1))
done
echo "[campaign] $failures failed; the record is in $record_dir"
[ "$failures" -eq 0 ]
