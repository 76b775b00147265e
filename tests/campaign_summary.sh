#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# campaign_summary.sh LOG: prints the rows of the table in docs/explanation/reliability.md, one for each suite and binary in a log of
# campaigns.
set -euo pipefail

if [ ! -e "$1" ]; then
  echo "campaign_summary.sh: expected the log of a campaign, got no file $1. Run ./setup.sh campaign." >&2
  exit 2
fi

awk -F '\t' '
  {
    row = $2 " " $3
    if (!(row in last)) order[++rows] = row
    # A shard that was mended and run again counts by its last run.
    if (!((row, $4, $6) in status)) { shards[row]++; programs[row] += $6; if ($8 != 0) failed[row]++ }
    else if (status[row, $4, $6] != 0 && $8 == 0) failed[row]--
    status[row, $4, $6] = $8
    seconds[row] += $7
    if ($6 > 0) {
      if (!(row in first) || $5 < first[row]) first[row] = $5
      if ($5 + $6 - 1 > end[row]) end[row] = $5 + $6 - 1
    }
    last[row] = substr($1, 1, 10)
    commit[row] = $9
  }
  END {
    print "| campaign | number | result | seeds | time | date | commit |"
    print "|---|---|---|---|---|---|---|"
    for (i = 1; i <= rows; ++i) {
      row = order[i]
      split(row, name, " ")
      number = shards[row] " pieces" (programs[row] ? ", " programs[row] " programs" : "")
      result = failed[row] ? failed[row] " failed" : "passed"
      seeds = row in first ? first[row] " to " end[row] : ""
      printf "| %s | %s | %s | %s | %d s | %s | %s |\n", name[1], number, result, seeds, seconds[row], last[row], commit[row]
    }
  }' "$1"
