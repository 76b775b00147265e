#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# python_campaign.sh PYTHON PYTHONPATH RECORD_DIR: soak, 200 runs of the suites on several ranks, torch's op samples in every
# configuration, then 5,000 random programs that torch.compile traces and 100,000 others, in shards that are not run again
# for the same package once they have passed; see campaign_piece.sh for the record.
#
# REMAT_RANKS_RUNS: runs of each suite on several ranks (default 200, 10 in a piece, all but the first in the same processes).
# REMAT_COMPILED_PROGRAMS: random programs for torch.compile (default 5000, 500 in a piece).
# REMAT_OPINFO_SAMPLES: samples per op and configuration (default 0, all).
# REMAT_CAMPAIGN_SHARDS: shards (default 20). REMAT_FUZZ_N: programs per shard (default 5000). REMAT_SOAK_STEPS: steps of
# soak (default 100,000).
set -euo pipefail

python=$1
export PYTHONPATH=$2 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
record_dir=$3  # for campaign_piece.sh
shards=${REMAT_CAMPAIGN_SHARDS:-20}
programs=${REMAT_FUZZ_N:-5000}
soak_steps=${REMAT_SOAK_STEPS:-100000}
ranks_runs=${REMAT_RANKS_RUNS:-200}
ranks_runs_of_piece=10
compiled_programs=${REMAT_COMPILED_PROGRAMS:-5000}
samples=${REMAT_OPINFO_SAMPLES:-0}
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=tests/campaign_piece.sh
source ./campaign_piece.sh
cd ../python/tests

package=$("$python" -c 'import remat_meta, os; print(os.path.dirname(remat_meta.__file__))')
mapfile -t libraries < <(find -L "$package" "$package/../.." -maxdepth 2 \
  \( -name '_C.*.so' -o -name 'libremat*.so.*' \) -type f | sort)
binary=$(binary_of "${libraries[@]}" ./*.py fuzz/*.py opinfo/*.py)

piece python.soak "$binary" 0 0 "$soak_steps" env REMAT_SOAK_STEPS="$soak_steps" \
  "$python" -m pytest -q -p no:cacheprovider test_leaks.py
for ((run = 0; run < ranks_runs; run += ranks_runs_of_piece)); do
  for suite in agreement collectives distributed sharded; do
    piece "python.$suite" "$binary" "$run" 0 "$ranks_runs_of_piece" env REMAT_RANKS_ROUNDS="$ranks_runs_of_piece" \
      "$python" -m pytest -q -p no:cacheprovider "test_$suite.py"
  done
done
for ((first = 0; first < compiled_programs; first += 500)); do
  piece python.compiled "$binary" "$first" "$first" 500 "$python" -m fuzz.compiled --seed "$first" --count 500
done
for ((shard = 0; shard < shards; ++shard)); do
  piece python.opinfo "$binary" "$shard-of-$shards" 0 0 env REMAT_OPINFO_SAMPLES="$samples" REMAT_OPINFO_CONFIGURATIONS=0 \
    REMAT_OPINFO_SHARD="$shard/$shards" \
    "$python" -m pytest -q -p no:cacheprovider opinfo/
  piece python.fuzz "$binary" "$shard" "$((shard * programs))" "$programs" \
    "$python" -m fuzz --seed "$((shard * programs))" --count "$programs"
done
end_campaign
