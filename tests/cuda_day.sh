#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# cuda_day.sh OUT_DIR: all that needs a GPU, in one run of at most eight minutes: builds, runs the suites with the label cuda,
# measures a GPT-2 medium in each way of checkpointing (bench/bench_cuda.py), and has compute-sanitizer look at offload. OUT_DIR
# has results.md after each step, and log.txt. Called again, it goes on with the steps that are not done. Without a GPU all of
# it runs on the stand-in, with tiny models.
#
# cuda_day.sh --pack: for a machine without network, fills build/cuda_day with the headers and packages that such a machine may
# lack, and prints its size. Copy the tree and that folder there. The machine needs CMake, Ninja, a compiler, and a Python
# with torch.
#
# REMAT_CUDA_DAY_SECONDS: the time for all (480). REMAT_CUDA_DAY_BUILD: the build folder (build/release).
# REMAT_CUDA_DAY_PYTHON: the Python of the other machine (3.12).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

readonly pack=$PWD/build/cuda_day
readonly build=$PWD/${REMAT_CUDA_DAY_BUILD:-build/${REMAT_BUILD_IN:-}release}
readonly packed_python=${REMAT_CUDA_DAY_PYTHON:-3.12}
readonly stand_in=$build/tests/cuda_stand_in
# Steps, the most informative first, each with the seconds reserved for it; later steps may use the time that a step leaves.
readonly steps=(build suites table_fp32 table_bf16 host_bound sanitizer)
readonly -A seconds=([build]=210 [suites]=90 [table_fp32]=70 [table_bf16]=45 [host_bound]=25 [sanitizer]=40)
readonly -A titles=([build]="Machine and build" [suites]="Suites with the label cuda" [table_fp32]="Steps, fp32"
  [table_bf16]="Steps, bf16" [host_bound]="Steps bound by the host" [sanitizer]="compute-sanitizer")
# Suites that run first: backwards inside regions, registered devices, streams and the threads of a device.
readonly telling='^cuda\.python\.(device|streams|backwards|regions)'
# Exit statuses of a step, besides 0 for done.
readonly with_findings=3 left_out=4 over_time=124

say() { printf '[cuda_day] %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 2
}

# Prints the folder of the headers of that Python, if this machine has them.
headers_of_python() {
  local python folder
  for python in "python$packed_python" ~/.pyenv/versions/"$packed_python".*/bin/python3; do
    folder=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null) || continue
    [ -e "$folder/Python.h" ] && echo "$folder" && return
  done
}

pack_headers() {
  local header
  mkdir -p "$pack/include" "$pack/cmake"
  for header in nlohmann/json.hpp catch2/catch.hpp; do
    [ -e "/usr/include/$header" ] || die "expected /usr/include/$header, got none. Run: apt-get install nlohmann-json3-dev catch2"
    cp -r "/usr/include/${header%/*}" "$pack/include/"
  done
  cat >"$pack/cmake/nlohmann_jsonConfig.cmake" <<'TEXT'
if(NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE "${CMAKE_CURRENT_LIST_DIR}/../include")
endif()
TEXT
  cat >"$pack/cmake/Catch2Config.cmake" <<'TEXT'
if(NOT TARGET Catch2::Catch2WithMain)
  add_library(Catch2WithMain STATIC "${CMAKE_CURRENT_LIST_DIR}/catch_main.cpp")
  target_include_directories(Catch2WithMain SYSTEM PUBLIC "${CMAKE_CURRENT_LIST_DIR}/../include")
  target_compile_features(Catch2WithMain PUBLIC cxx_std_20)
  add_library(Catch2::Catch2WithMain ALIAS Catch2WithMain)
endif()
TEXT
  printf '#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n' >"$pack/cmake/catch_main.cpp"
}

pack_python() {
  local folder
  if ! python3 -m pip install -q --disable-pip-version-check --no-compile --target "$pack/python" --python-version "$packed_python" \
    --only-binary=:all: 'pytest>=9,<10' 'hypothesis>=6,<7' 'expecttest<1'; then
    say "not packed: pytest, hypothesis and expecttest, so the other machine must have them for Python's suites"
  fi
  folder=$(headers_of_python)
  if [ -n "$folder" ]; then
    cp -r "$folder" "$pack/python$packed_python"
  else
    say "not packed: the headers of Python $packed_python, so the other machine must have them for the Python package"
  fi
}

commit() {
  git describe --always --abbrev=12 --dirty --match '' 2>/dev/null || cat "$pack/commit" 2>/dev/null || echo unknown
}

make_pack() {
  local tree_bytes pack_bytes
  rm -rf "$pack"
  pack_headers
  pack_python
  commit >"$pack/commit"
  tree_bytes=$(git ls-files -z --cached --others --exclude-standard | xargs -0 du -cb | awk 'END { print $1 }')
  pack_bytes=$(du -sb "$pack" | cut -f 1)
  awk -v tree="$tree_bytes" -v pack="$pack_bytes" \
    'BEGIN { printf "build/cuda_day: %.1f MiB; with the tree, without .git: %.1f MiB\n", pack / 2^20, (tree + pack) / 2^20 }'
}

# Steps print Markdown, and end with 0 or one of the codes above.

left() { echo $((step_end - $(date +%s))); }

# Runs a command until the step's time is over.
within() {
  local left
  left=$(left)
  [ "$left" -gt 0 ] || return $over_time
  timeout -k 5 "$left" "$@"
}

# Runs a command on the GPU, or on the stand-in.
on_cuda() {
  if [ -x "$stand_in/find_gpu" ]; then
    within "$stand_in/run.sh" "$@"
  else
    within "$@"
  fi
}

has_gpu() {
  if [ -x "$stand_in/find_gpu" ]; then "$stand_in/find_gpu"; else command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null; fi
}

cores() { env -u OMP_NUM_THREADS nproc; }

# The Python whose torch the build has found.
python_of_build() {
  local root
  root=$(sed -n 's/^LibTorch_LAST_ROOT:INTERNAL=//p' "$build/CMakeCache.txt" 2>/dev/null)
  if [ -x "$root/../../../../bin/python3" ]; then echo "$root/../../../../bin/python3"; else command -v python3; fi
}

facts() {
  local gpu=none
  has_gpu && gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
  [ "$gpu" != none ] || gpu="none: all of this ran on the CUDA stand-in, whose times are virtual"
  echo "| | |"
  echo "|---|---|"
  echo "| date | $(date -u '+%Y-%m-%d %H:%M') UTC |"
  echo "| commit | $(commit) |"
  echo "| GPU, driver, memory | ${gpu:-there is one, nvidia-smi does not name it} |"
  echo "| torch | $("$python" -c 'from importlib.metadata import version; print(version("torch"))' 2>&1 | tail -n 1) |"
  echo "| Python, compiler | $("$python" -c 'import platform; print(platform.python_version())'), $("${CXX:-c++}" --version | head -n 1) |"
  echo "| nvcc | $({ nvcc --version 2>/dev/null || echo none; } | tail -n 1) |"
  echo "| cores | $(cores) |"
}

# Configures a new build folder, with the packed files and without parts that this run does not need.
configure() {
  local options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DREMAT_BUILD_BENCH=OFF -DREMAT_BUILD_EXAMPLES=OFF -DREMAT_BUILD_TOOLS=OFF
    -DREMAT_INSTALL=OFF -DREMAT_BUDGET_SCALE=20) include minor
  if [ -e "$pack/cmake" ]; then
    options+=("-DCatch2_DIR=$pack/cmake" "-Dnlohmann_json_DIR=$pack/cmake" "-DREMAT_PYTHON_TOOLS=$pack/python")
  fi
  minor=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
  if [ ! -e "$include/Python.h" ] && [ -e "$pack/python$minor" ]; then
    options+=("-DREMAT_PYTHON_INCLUDES=$pack/python$minor")
  fi
  within cmake -S . -B "$build" "${options[@]}" || return
}

# Prints the programs of the suites with the label cuda, as Ninja names them.
programs_of_suites() {
  ctest --test-dir "$build" --show-only=json-v1 -L '^cuda$' | "$python" -c '
import json, sys
text = sys.stdin.read()
tests = json.loads(text[text.index("{"):])["tests"]
if sys.argv[2] == "gpu":
    tests = [test for test in tests if not test["name"].startswith("cuda_stand_in")]
words = {word for test in tests for word in test.get("command", []) if word.startswith(sys.argv[1] + "/tests/")}
print(*sorted(word[len(sys.argv[1]) + 1:] for word in words if "/cuda_stand_in/run.sh" not in word), sep="\n")' "$build" "$(has_gpu && echo gpu || echo stand_in)"
}

build_step() {
  local begin=$SECONDS status=0 targets
  python=$(python_of_build)
  if [ ! -e "$build/build.ninja" ]; then
    configure >&2 || {
      echo "CMake does not find what it needs: see log.txt."
      return 1
    }
    python=$(python_of_build)
  fi
  # Without LibTorch's CUDA headers there are no suites and no find_gpu; the tables need neither.
  within ninja -C "$build" cuda_stand_in_find_gpu >&2
  facts
  echo
  if ! has_gpu; then
    within ninja -C "$build" cuda_stand_in >&2 || status=1
  fi
  if within ninja -C "$build" remat_python >&2; then
    echo "- The Python package is built."
  else
    echo "- The Python package is **not built**, so neither Python's suites nor the tables run: $(why_no_package)"
    status=1
  fi
  if grep -q -F '[python] expected pytest' "$out/log.txt"; then
    echo "- Python's suites are **left out**: pytest, hypothesis or expecttest is missing."
    status=1
  fi
  mapfile -t targets < <(programs_of_suites)
  if [ "${#targets[@]}" -eq 0 ]; then
    echo "- No suite has the label cuda: $(grep -m 1 -F '[cuda]' "$out/log.txt" || echo 'see log.txt')"
    status=1
  elif within ninja -C "$build" -k 0 "${targets[@]}" >&2; then
    echo "- Suites in C++: ${#targets[@]} programs and libraries are built."
  else
    echo "- Suites in C++: **not all** of ${#targets[@]} programs and libraries are built: see log.txt."
    status=1
  fi
  echo "- This took $((SECONDS - begin)) s."
  [ "$(left)" -gt 0 ] || return $over_time
  return $status
}

why_no_package() {
  if ninja -C "$build" -t query remat_python >/dev/null 2>&1; then
    echo "it does not compile, or there was no time: see log.txt."
  else
    echo "CMake has left it out. Most likely Python's headers are missing ($(python3 -c \
      'import sysconfig; print(sysconfig.get_path("include"))')/Python.h); cuda_day.sh --pack takes them along where it finds them."
  fi
}

# Prints the suites that have not passed yet, the most informative first.
suites_to_run() {
  local all
  all=$(ctest --test-dir "$build" -N -L '^cuda$' | sed -n 's/^ *Test *#[0-9]*: //p')
  # The stand-in's own tests say nothing about a GPU.
  has_gpu && all=$(grep -v '^cuda_stand_in' <<<"$all")
  all=$(grep -v -x -F -f <(sed -n 's/.*Test *#[0-9]*: \([^ ]*\) .* Passed .*/\1/p' "$out/log.txt" 2>/dev/null; echo -) <<<"$all")
  grep -E "$telling" <<<"$all"
  grep -v -E "$telling" <<<"$all"
}

suites_step() {
  local names first rest group jobs before
  before=$(stat -c %s "$out/log.txt")
  mapfile -t names < <(suites_to_run)
  first=$(printf '%s\n' "${names[@]}" | grep -E "$telling" | paste -s -d '|')
  rest=$(printf '%s\n' "${names[@]}" | grep -v -E "$telling" | paste -s -d '|')
  if [ "${#names[@]}" -eq 0 ] && ! grep -q 'Test *#' "$out/log.txt"; then
    echo "There are no suites: see the build."
    return $left_out
  fi
  jobs=$(($(cores) < 8 ? $(cores) : 8))
  for group in "$first" "$rest"; do
    [ -n "$group" ] || continue
    within ctest --test-dir "$build" -R "^(${group//./\\.})\$" -j "$jobs" --output-on-failure \
      --stop-time "$(date -d "@$((step_end - 3))" +%H:%M:%S)" >&2
  done
  suites_table "$before"
}

# suites_table BYTES: prints the results so far; failures are read after this many bytes of the log.
suites_table() {
  local results name status=0
  # The last result of each suite.
  results=$(sed -n -E 's/.*Test +#[0-9]+: ([^ ]+) \.*(.*[^0-9 ]) +([0-9.]+) sec.*/\1 | \2 | \3 s/p' "$out/log.txt" |
    sed 's/\*\*\*//' | awk -F ' [|] ' '{ if (!($1 in row)) order[++n] = $1; row[$1] = $0 } END { for (i = 1; i <= n; ++i) print row[order[i]] }')
  echo "| suite | result | time |"
  echo "|---|---|---|"
  [ -z "$results" ] || sed 's/.*/| & |/; s/  */ /g' <<<"$results"
  grep -q -v ' Passed ' <<<"$results" && status=$with_findings
  while read -r name; do
    if [ -z "$name" ] || grep -q "^$name |" <<<"$results"; then continue; fi
    echo "| $name | not run | |"
    status=$over_time
  done < <(suites_to_run)
  if [ "$status" -ne 0 ]; then
    printf '\nWhat failed:\n\n```\n%s\n```\n' "$(tail -c "+$(($1 + 1))" "$out/log.txt" |
      { grep -E '^(E  |FAILED|.*: FAILED:|.*Error:|Error)' || true; } | sort -s -k1,1r | uniq | head -n 60)"
  fi
  return $status
}

has_package() {
  on_cuda "$python" -c 'import remat_meta' >&2 && return
  echo "There is no Python package: see the build."
  return 1
}

# table_step ARGUMENTS...: bench_cuda.py, which writes its table after each pass.
table_step() {
  local size=medium until status
  until=$(($(left) * 2 / 3))
  # Times of the stand-in are virtual, so a few rounds will do.
  if ! has_gpu; then size=tiny until=1; fi
  rm -f "$out/.table"
  has_package || return $left_out
  on_cuda "$python" bench/bench_cuda.py "$@" --size "$size" --seconds "$until" --out "$out/.table" >&2
  status=$?
  cat "$out/.table" 2>/dev/null
  rm -f "$out/.table"
  return $status
}

table_fp32_step() { table_step table --dtype fp32; }
table_bf16_step() { table_step table --dtype bf16; }
host_bound_step() { table_step host; }

sanitizer_step() {
  local sanitizer text status
  has_package || return $left_out
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
  if ! has_gpu; then
    echo "This needs a GPU. On the stand-in the same program runs by itself:"
    echo
    text=$(on_cuda "$python" bench/bench_cuda.py offload 2>&1) && status=0 || status=$?
  elif [ -z "$sanitizer" ]; then
    echo "compute-sanitizer is not there."
    return $left_out
  else
    # Gives each tensor its own allocation, so that the tool knows where it ends.
    text=$(PYTORCH_NO_CUDA_MEMORY_CACHING=1 on_cuda "$sanitizer" --tool memcheck --error-exitcode $with_findings \
      "$python" bench/bench_cuda.py offload 2>&1) && status=0 || status=$?
  fi
  echo "$text" >&2
  printf '```\n%s\n```\n' "$(tail -n 15 <<<"$text")"
  return $status
}

# True if a step has been done in an earlier run, without findings.
is_done() { head -n 1 "$out/$1.md" 2>/dev/null | grep -q ': done$'; }

# Prints the seconds reserved for the steps after $1.
kept_after() {
  local step sum=0 after=
  for step in "${steps[@]}"; do
    [ -z "$after" ] || is_done "$step" || sum=$((sum + ${seconds[$step]}))
    [ "$step" != "$1" ] || after=1
  done
  echo $sum
}

assemble() {
  local step
  {
    echo "# CUDA: what was run"
    for step in "${steps[@]}"; do
      echo
      if [ -e "$out/$step.md" ]; then cat "$out/$step.md"; else echo "## ${titles[$step]}: not begun"; fi
    done
  } >"$out/results.md"
}

run_step() {
  local step=$1 limit status how
  limit=$((deadline - $(date +%s) - $(kept_after "$step")))
  if [ "$limit" -lt 5 ]; then
    say "$step: no time is left"
    return
  fi
  step_end=$(($(date +%s) + limit))
  say "$step: has $limit s"
  { printf '## %s: not finished: interrupted\n\n' "${titles[$step]}"; } >"$out/$step.md"
  assemble
  "${step}_step" >"$out/.step" 2>>"$out/log.txt"
  status=$?
  case $status in
    0) how='done' ;;
    "$with_findings") how="done, **with findings**" ;;
    "$left_out") how="left out" ;;
    "$over_time" | 137) how="not finished: ended at its limit of $limit s" ;;
    *) how="not finished: ended with $status, see log.txt" ;;
  esac
  { printf '## %s: %s\n\n' "${titles[$step]}" "$how" && cat "$out/.step"; } >"$out/$step.md"
  rm -f "$out/.step"
  say "$step: $how"
  assemble
}

main() {
  [ $# -eq 1 ] || die "expected a folder for the results, or --pack. Example: tests/cuda_day.sh build/cuda_results"
  case $1 in
    --pack) make_pack && exit ;;
    -*) die "usage: tests/cuda_day.sh OUT_DIR, or tests/cuda_day.sh --pack. The head of this script says what they do." ;;
  esac
  mkdir -p "$1" || die "expected a folder that can be written, got $1"
  out=$(cd "$1" && pwd)
  deadline=$(($(date +%s) + ${REMAT_CUDA_DAY_SECONDS:-480}))
  python=$(python_of_build)
  tools=build/${REMAT_BUILD_IN:-}python_tools
  if [ ! -e "$tools" ]; then tools=$pack/python; fi
  export CUBLAS_WORKSPACE_CONFIG=:4096:8  # for deterministic matrix products
  export PYTHONPATH=$build/python:$tools PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
  for step in "${steps[@]}"; do
    is_done "$step" || run_step "$step"
  done
  cat "$out/results.md"
  for step in "${steps[@]}"; do
    is_done "$step" || exit 1
  done
  exit 0
}

main "$@"
