#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# campaign.sh BUILD_DIR RECORD_DIR FUZZ_SUITE...: every test under the sanitizers, then each fuzz suite in shards.
#
# RECORD_DIR/log.tsv gets a line per finished piece: time, suite, binary, shard, first seed, programs, seconds, status.
# A piece that passed is not run again for the same binary, so the campaign can be stopped and started at will.
# REMAT_CAMPAIGN_SHARDS: shards per suite (default 20). REMAT_FUZZ_N: programs per shard (default 2000).
set -euo pipefail

build_dir=$1
record_dir=$2
shift 2
shards=${REMAT_CAMPAIGN_SHARDS:-20}
programs=${REMAT_FUZZ_N:-2000}
failures=0
mkdir -p "$record_dir"
log=$record_dir/log.tsv

# A name for what is tested: the program with remat's libraries.
binary_of() {
  {
    cat "$@"
    find "$build_dir" -maxdepth 2 -name 'libremat_*.so.*' -type f -print0 | sort -z | xargs -0 cat
  } | sha256sum | cut -c1-12
}

# piece SUITE BINARY SHARD FIRST_SEED PROGRAMS COMMAND...: runs the command unless that piece passed before.
piece() {
  local suite=$1 binary=$2 shard=$3 seed=$4 count=$5
  shift 5
  local name=$suite-$binary-$shard-$count
  if [ -e "$record_dir/$name.passed" ]; then
    echo "[campaign] $name: passed before"
    return
  fi
  echo "[campaign] $name: $count programs from seed $seed"
  local start=$SECONDS status=0
  "$@" >"$record_dir/$name.txt" 2>&1 || status=$?
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(date -u +%FT%TZ)" "$suite" "$binary" "$shard" "$seed" "$count" \
    "$((SECONDS - start))" "$status" >>"$log"
  tail -n 3 "$record_dir/$name.txt"
  if [ "$status" -eq 0 ]; then
    touch "$record_dir/$name.passed"
  else
    echo "[campaign] $name: FAILED ($status), see $record_dir/$name.txt"
    failures=$((failures + 1))
  fi
}

mapfile -t suites < <(find "$build_dir/tests" -maxdepth 1 -type f -executable -name '*.*' | sort)
unset REMAT_FUZZ_N
piece all-tests "$(binary_of "${suites[@]}")" 0 0 0 \
  ctest --test-dir "$build_dir" --no-tests=error --output-on-failure -j 2

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_init_order=1:protect_shadow_gap=0
export UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 REMAT_FUZZ_N=$programs
for ((shard = 0; shard < shards; ++shard)); do
  for suite in "$@"; do
    REMAT_FUZZ_SHARD=$shard piece "$suite" "$(binary_of "$build_dir/tests/$suite")" "$shard" \
      "$((shard * programs))" "$programs" "$build_dir/tests/$suite" '[fuzz]' --durations yes
  done
done

echo "[campaign] $failures failed; the record is $log"
[ "$failures" -eq 0 ]
