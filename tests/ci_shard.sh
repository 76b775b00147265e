#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# ci_shard.sh BUILD_DIR PYTHON PYTHONPATH FUZZ_SUITE...: about a minute of random programs that no test of the day before ran,
# then op samples in configurations that were not run either. Without a Python package, PYTHON is empty.
set -euo pipefail

build_dir=$1
python=$2
export PYTHONPATH=$3 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
shift 3
# Seeds start beyond those of tests and campaigns; each day of a year has another shard.
shard=${REMAT_CI_SHARD:-$((1000 + $(date +%s) / 86400 % 365))}
programs=3000
python_programs=1000

for name in "$@"; do
  echo "[ci] shard $shard: $name, $programs programs from seed $((shard * programs))"
  REMAT_FUZZ_SHARD=$shard REMAT_FUZZ_N=$programs "$build_dir/tests/$name" '[fuzz]'
done
[ -n "$python" ] || exit 0
first=$((shard * python_programs))
echo "[ci] shard $shard: python, $python_programs programs from seed $first"
cd "$(dirname "${BASH_SOURCE[0]}")/../python/tests"
"$python" -m fuzz --seed "$first" --count "$python_programs"
echo "[ci] shard $shard: op samples in other configurations, every eighth op"
REMAT_OPINFO_ROTATION=$shard REMAT_OPINFO_SHARD=$((shard % 8))/8 "$python" -m pytest -q -p no:cacheprovider opinfo
