# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause

# Sourced by the campaigns: pieces of work that are skipped once they have passed. Needs record_dir.
#
# $record_dir/log.tsv gets a line per finished piece: time, suite, binary, shard, first seed, programs, seconds, status, commit.
# campaign_summary.sh makes a table of it.
mkdir -p "${record_dir:?}"
log=$record_dir/log.tsv
failures=0
commit=$(git -C "$(dirname "${BASH_SOURCE[0]}")" describe --always --dirty 2>/dev/null || echo unknown)

# Prints a name for the tested files: a hash of their contents.
binary_of() {
  cat "$@" | sha256sum | cut -c1-12
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
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(date -u +%FT%TZ)" "$suite" "$binary" "$shard" "$seed" "$count" \
    "$((SECONDS - start))" "$status" "$commit" >>"$log"
  tail -n 3 "$record_dir/$name.txt"
  if [ "$status" -eq 0 ]; then
    touch "$record_dir/$name.passed"
  else
    echo "[campaign] $name: FAILED ($status), see $record_dir/$name.txt"
    failures=$((failures + 1))
  fi
}

# Prints the end of a campaign; false if a piece has failed.
end_campaign() {
  "$(dirname "${BASH_SOURCE[0]}")/campaign_summary.sh" "$log"
  echo "[campaign] $failures failed; the record is $log"
  [ "$failures" -eq 0 ]
}
