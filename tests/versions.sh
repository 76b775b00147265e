#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# versions.sh MINOR [all]: remat with another minor version of LibTorch (2.10 to 2.15). Puts torch into
# build/versions/MINOR/venv, builds everything for it, runs the short suites there, each by itself, and ends with a line for
# docs/reference/versions.md. Called again it goes on where it was stopped; suites that have passed are not run again until something
# changes. With `all` the long ones too: random programs, op samples, consumers.
#
# REMAT_VERSIONS_JOBS: suites at once, default 2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  printf '[versions] %s\n' "$*" >&2
  exit 2
}

[[ ${1:-} =~ ^2\.[0-9]+$ ]] || die "expected a minor version of torch, 2.10 to 2.15, got ${1:-nothing}. Example: tests/versions.sh 2.15"
readonly minor=$1
readonly long='^(backend|budget|planner|recording|policy)\.fuzz|^python\.(fuzz|opinfo)|^consumer\.|^mutants\.'
left_out=(-E "$long")
[ "${2:-}" != all ] || left_out=()
export REMAT_TORCH_VERSION=$minor REMAT_BUILD_IN="versions/$minor/"
readonly folder=build/versions/$minor
readonly build=$folder/release

./setup.sh none
cmake --preset release >"$folder/configure.log" || die "configure failed: see $folder/configure.log"
cmake --build "$build"

# The list of passed suites is valid for these files only.
state=$({ git rev-parse HEAD && git diff HEAD && git ls-files --others --exclude-standard; } | sha256sum | cut -c 1-16)
readonly passed=$folder/passed.$state
touch "$passed"

# Prints the names of the suites to run.
suites() {
  ctest --test-dir "$build" -N "${left_out[@]}" | sed -n 's/^ *Test *#[0-9]*: //p'
}

run_suite() {
  if ctest --test-dir "$build" -R "^${1//./\\.}\$" --output-on-failure >"$folder/$1.log" 2>&1; then
    echo "$1" >>"$passed"
    printf '[versions] %s: passed %s\n' "$minor" "$1"
  else
    printf '[versions] %s: FAILED %s, see %s\n' "$minor" "$1" "$folder/$1.log"
  fi
}
export -f run_suite
export build folder passed minor

suites | sort | comm -23 - <(sort -u "$passed") |
  xargs --no-run-if-empty -P "${REMAT_VERSIONS_JOBS:-2}" -I '{}' bash -c 'run_suite {}'

failed=$(suites | sort | comm -23 - <(sort -u "$passed") | tr '\n' ' ')
all=$(suites | wc -l)
torch=$(sed -n 's/^-- LibTorch \([0-9.]*\):.*/\1/p' "$folder/configure.log")
printf '[versions] torch %s: %d of %d suites passed; failed: %s\n' "$torch" "$((all - $(wc -w <<<"$failed")))" "$all" "${failed:-none}"
[ -z "$failed" ]
