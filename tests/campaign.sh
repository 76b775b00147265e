#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# campaign.sh BUILD_DIR RECORD_DIR PYTHON FUZZ_SUITE...: every test under the sanitizers, every fault at every place, soak,
# mutants, and each fuzz suite in shards.
#
# A piece that passed is not run again for the same binary, so the campaign can be stopped and started at will; see
# campaign_piece.sh for the record. REMAT_CAMPAIGN_SHARDS: shards per suite (default 20). REMAT_FUZZ_N: programs per shard
# (default 2000). REMAT_SOAK_STEPS: steps of soak (default 100,000).
set -euo pipefail

build_dir=$1
record_dir=$2
python=$3
shift 3
shards=${REMAT_CAMPAIGN_SHARDS:-20}
programs=${REMAT_FUZZ_N:-2000}
soak_steps=${REMAT_SOAK_STEPS:-100000}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/campaign_piece.sh

mapfile -t libraries < <(find "$build_dir" -maxdepth 2 -name 'libremat*.so.*' -type f | sort)
mapfile -t suites < <(find "$build_dir/tests" -maxdepth 1 -type f -executable -name '*.*' | sort)
mapfile -t sources < <(find CMakeLists.txt CMakePresets.json cmake include placeholder policy planner engine tape forward backend inspect python \
  tests -type f -not -name '*.pyc' | sort)
sources_name=$(binary_of "${sources[@]}")
unset REMAT_FUZZ_N REMAT_SOAK_STEPS

piece all-tests "$(binary_of "${suites[@]}" "${libraries[@]}")" 0 0 0 \
  ctest --test-dir "$build_dir" --no-tests=error --output-on-failure -j 2
piece tsan "$sources_name" 0 0 0 cmake --workflow --preset tsan
piece python-asan "$sources_name" 0 0 0 cmake --workflow --preset python-asan
if [ -e tests/mutants/run.py ]; then
  # mutants/run.py needs the tests and libraries of build/release.
  # shellcheck disable=SC2016
  piece mutants "$sources_name" 0 0 0 sh -c \
    'cmake --preset release && cmake --build --preset release && "$1" tests/mutants/run.py' mutants "$python"
fi

# suite NAME SHARD FIRST_SEED PROGRAMS [NAME=VALUE...] -- ARGUMENTS...: a piece that runs one sanitized program.
suite() {
  local name=$1 shard=$2 seed=$3 count=$4
  shift 4
  local environment=()
  while [ "$1" != -- ]; do environment+=("$1") && shift; done
  shift
  piece "$name" "$(binary_of "$build_dir/tests/$name" "${libraries[@]}")" "$shard" "$seed" "$count" \
    env "${environment[@]}" ASAN_OPTIONS=detect_stack_use_after_return=1:strict_init_order=1:protect_shadow_gap=0 \
    UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 "$build_dir/tests/$name" "$@"
}

if [ -e "$build_dir/tests/backend.faults" ]; then
  suite backend.faults all 0 0 REMAT_FAULTS_ALL=1 -- --durations yes
fi
suite backend.memory soak 0 "$soak_steps" REMAT_SOAK_STEPS="$soak_steps" -- '[soak]' --durations yes
suite offload.engine soak 0 "$soak_steps" REMAT_SOAK_STEPS="$soak_steps" -- '[soak]' --durations yes
for ((shard = 0; shard < shards; ++shard)); do
  for name in "$@"; do
    suite "$name" "$shard" "$((shard * programs))" "$programs" REMAT_FUZZ_SHARD="$shard" REMAT_FUZZ_N="$programs" -- \
      '[fuzz]' --durations yes
  done
done
end_campaign
