#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# within_budget.sh NAME BUDGET_S LIMIT_S -- COMMAND...: runs a test and judges it by the CPU time of all its processes. Fails if
# the command does, or if it took LIMIT_S seconds or more.
set -uo pipefail

name=$1 budget=$2 limit=$3
shift 4

exec 3>&1 4>&2
TIMEFORMAT='%U %S'
spent=$({ time "$@" 1>&3 2>&4 3>&- 4>&-; } 2>&1)
status=$?
# Reads the last line: before it the shell may have printed what ended the command. Some locales write the decimal point as a
# comma.
seconds=$(tr , . <<<"$spent" | LC_ALL=C awk 'END { printf "%.1f", $1 + $2 }')
echo "[budget] $name: $seconds s of CPU time, budget $budget s"
[ "$status" -eq 0 ] || exit "$status"
if LC_ALL=C awk -v spent="$seconds" -v limit="$limit" 'BEGIN { exit !(spent >= limit) }'; then
  echo "[budget] $name: expected less than $limit s of CPU time, got $seconds s. Shorten the test, or raise its BUDGET_S in CMake."
  exit 1
fi
