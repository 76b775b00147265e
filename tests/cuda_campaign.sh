#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# cuda_campaign.sh BUILD_DIR RECORD_DIR [PYTHON PYTHONPATH]: 100,000 random programs of C++ and 20,000 of Python on CUDA tensors,
# each in a random order of streams, in shards. A shard that passed is not run again for the same binaries; see campaign_piece.sh
# for the record.
#
# REMAT_CUDA_SHARDS: shards (default 20). REMAT_FUZZ_N: programs of C++ per shard (default 5000), of which Python runs a fifth.
set -euo pipefail

build_dir=$1
# shellcheck disable=SC2034
record_dir=$2  # for campaign_piece.sh
python=${3:-}
export PYTHONPATH=${4:-} PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 REMAT_FUZZ_DEVICE=cuda
shards=${REMAT_CUDA_SHARDS:-20}
programs=${REMAT_FUZZ_N:-5000}
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=tests/campaign_piece.sh
source ./campaign_piece.sh

run=$build_dir/tests/cuda_stand_in/run.sh
mapfile -t libraries < <(find "$build_dir" -maxdepth 2 -name 'libremat*.so.*' -type f | sort)
mapfile -t stand_in < <(find "$build_dir/tests/cuda_stand_in" -maxdepth 1 -name '*.so*' -type f | sort)
suite=$build_dir/tests/backend.fuzz
binary=$(binary_of "$suite" "${libraries[@]}" "${stand_in[@]}")
for ((shard = 0; shard < shards; ++shard)); do
  piece backend.fuzz.cuda "$binary" "$shard" "$((shard * programs))" "$programs" env REMAT_FUZZ_SHARD="$shard" \
    REMAT_FUZZ_N="$programs" "$run" "$suite" '[fuzz]'
done

if [ -n "$python" ]; then
  cd ../python/tests
  package=$("$python" -c 'import remat_meta, os; print(os.path.dirname(remat_meta.__file__))')
  mapfile -t modules < <(find -L "$package" -maxdepth 1 -name '_C.*.so' -type f)
  binary=$(binary_of "${modules[@]}" "${libraries[@]}" "${stand_in[@]}" ./*.py fuzz/*.py)
  programs=$((programs / 5))
  # The last quarter of the shards has ops that were added later.
  for ((shard = 0; shard < shards; ++shard)); do
    seed=$((shard * programs + (4 * shard / shards == 3 ? 300000 : 0)))
    piece python.fuzz.cuda "$binary" "$shard" "$seed" "$programs" "$run" "$python" -m fuzz --seed "$seed" --count "$programs"
  done
fi
end_campaign
