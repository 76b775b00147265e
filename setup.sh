#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# Installs what is missing, then runs a CMake workflow preset: ./setup.sh demo|test|bench|dev|asan|campaign|none
# With REMAT_TORCH_VERSION=2.15 in the environment, for that LibTorch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly default_torch=2.11
# Another LibTorch has its packages and build folders in build/versions/: see CMakePresets.json for REMAT_BUILD_IN.
readonly torch_version=${REMAT_TORCH_VERSION:-$default_torch}
if [ "$torch_version" != "$default_torch" ]; then
  export REMAT_TORCH_VERSION REMAT_BUILD_IN="versions/$torch_version/"
fi
readonly venv=build/${REMAT_BUILD_IN:-}venv
readonly python_tools=build/${REMAT_BUILD_IN:-}python_tools
readonly test_packages=('pytest>=9,<10' 'hypothesis>=6,<7' 'expecttest<1' 'mypy>=1.18,<2' 'basedpyright>=1.40,<2')
readonly model_packages=python/tests/models/requirements.txt
# The site of the manual is made with these.
readonly docs_tools=build/docs_tools
readonly docs_packages=docs/requirements.txt
# Which torchvision goes with which torch; the list has the one of 2.11.
# shellcheck disable=SC2079  # keys, not numbers
readonly -A torchvision=([2.10]=0.25.0 [2.11]=0.26.0 [2.12]=0.27.1 [2.13]=0.28.0 [2.14]=0.29.1 [2.15]=0.29.2)
packages=(g++ cmake ninja-build ccache catch2 nlohmann-json3-dev libcli11-dev libbenchmark-dev python3-dev valgrind)

say() { printf '[setup] %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

usage() {
  cat <<'TEXT'
usage: ./setup.sh PRESET
  demo      trains a small GPT-2 plain and checkpointed, prints one table
  test      builds everything and runs all tests
  bench     times remat beside plain LibTorch
  dev       as test, with debug information and warnings as errors
  asan      as test, under AddressSanitizer and UndefinedBehaviorSanitizer
  campaign  all op samples and random programs of Python, then hours of fuzzing under the sanitizers; stop it and start
            it again at will
  none      only installs what is missing
LibTorch 2.11 is taken from Torch_DIR or CMAKE_PREFIX_PATH, else from the active Python, else from build/venv, which this
script makes. If you have all of that, run: cmake --workflow --preset PRESET
With REMAT_TORCH_VERSION=2.15 (2.10 to 2.15) in the environment it is that one, all in build/versions/2.15.
TEXT
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "must be root, or have sudo, to run: $*"
  fi
}

# Prints the packages that are not installed.
missing_packages() {
  # dpkg-query fails if a package is unknown, but prints the others all the same.
  { dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true; } |
    sed -n 's/^installed //p' | sort -u |
    comm -13 - <(printf '%s\n' "${packages[@]}" | sort -u)
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: expecting these to be there: ${packages[*]}"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" -eq 0 ] && return
  say "installing Debian packages: ${missing[*]}"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
  # A fresh machine has no package lists, or old ones: update them, then try again.
  if ! as_root "${install[@]}" >/dev/null 2>&1; then
    if ! { as_root apt-get update -q && as_root "${install[@]}"; }; then
      die "apt-get could not install: ${missing[*]}. Install them by hand, then run this again."
    fi
  fi
}

# Installs the browser in which tests open the pages of remat-report; without it these tests are skipped.
install_browser() {
  local name
  for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && return
  done
  [ "${REMAT_BROWSER:-}" != none ] && command -v apt-cache >/dev/null || return 0
  if ! apt-cache show chromium >/dev/null 2>&1; then
    say "apt-cache knows no package chromium: tests that open pages of remat-report are skipped. Run: apt-get update"
    return
  fi
  say "installing Debian package: chromium (100 MB, once; REMAT_BROWSER=none leaves it out)"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium)
  (as_root "${install[@]}" || { as_root apt-get update -q && as_root "${install[@]}"; }) >/dev/null 2>&1 ||
    say "apt-get could not install chromium: tests that open pages of remat-report are skipped"
}

# Prints the LibTorch that CMake would find; fails with CMake's message if one was named that does not fit.
find_libtorch() {
  cmake -P cmake/FindLibTorch.cmake 2>&1
}

make_venv() {
  command -v python3 >/dev/null || die "python3 not found: expected python3 with venv. Run: apt-get install python3-venv"
  say "no LibTorch $torch_version at hand: putting torch==$torch_version.0 into $venv (2.7 GB and a few minutes, once)"
  rm -rf "$venv"
  trap 'rm -rf "$venv"' EXIT INT TERM
  python3 -m venv "$venv" || die "python3 -m venv failed. Run: apt-get install python3-venv"
  "$venv/bin/pip" install --disable-pip-version-check "torch==$torch_version.0" numpy ||
    die "pip could not install torch==$torch_version.0. Is the network there? Does it have a wheel for $(python3 --version)?"
  trap - EXIT INT TERM
}

# Installs the packages of the tests into their own folder: the Python that has LibTorch stays unchanged.
install_python_tools() {
  local root=$1 python
  for python in "${LibTorch_PYTHON:-}" "$root/../../../../bin/python3" python3; do
    [ -n "$python" ] && command -v "$python" >/dev/null && break
  done
  [ -e "$root/lib/libtorch_python.so" ] || return 0
  if ! PYTHONPATH=$python_tools "$python" -c 'import basedpyright, expecttest, hypothesis, mypy, pytest' 2>/dev/null; then
    say "putting ${test_packages[*]} into $python_tools"
    install_tools "$python" "$python_tools" "${test_packages[@]}" || say "pip could not install them: the Python tests are left out"
  fi
  if ! has_packages "$python" "$docs_tools" "$docs_packages"; then
    say "putting Sphinx into $docs_tools (100 MB, once)"
    install_tools "$python" "$docs_tools" --no-deps -r "$docs_packages" ||
      say "pip could not install it: the test that makes the site of the manual is left out"
  fi
  has_packages "$python" "$python_tools" <(list_model_packages) && return
  say "putting the libraries of $model_packages into $python_tools (280 MB, half a minute, once)"
  # --no-deps: the list is complete, and their dependencies would bring another torch.
  install_tools "$python" "$python_tools" --no-deps -r <(list_model_packages) ||
    say "pip could not install them: the tests that train models of Transformers, timm and torchvision are left out"
}

# Prints the list for this torch.
list_model_packages() {
  sed "s/^torchvision==.*/torchvision==${torchvision[$torch_version]}/" "$model_packages"
}

# install_tools PYTHON FOLDER ARGUMENTS...
install_tools() {
  "$1" -m pip install --disable-pip-version-check -q --upgrade --target "$2" "${@:3}"
}

# has_packages PYTHON FOLDER LIST: true if every package of the list is there in the version that it names.
has_packages() {
  PYTHONPATH=$2 "$1" - "$3" <<'PYTHON'
import importlib.metadata
import sys

lines = [line.strip() for line in open(sys.argv[1])]
try:
    for name, version in (line.split("==") for line in lines if "==" in line):
        if importlib.metadata.version(name) != version:
            sys.exit(1)
except importlib.metadata.PackageNotFoundError:
    sys.exit(1)
PYTHON
}

main() {
  local preset=${1:-}
  case "$preset" in
    demo | test | bench | dev | asan | campaign | none) ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  [ "$#" -eq 1 ] || die "expected one argument, got $#: $*"

  [[ $preset == demo || $preset == bench ]] || packages+=(doxygen)
  install_packages
  [[ $preset == demo || $preset == bench ]] || install_browser
  local found
  found=$(find_libtorch) || die "$found"
  if [[ $found == *"libtorch: none"* ]]; then
    make_venv
    found=$(find_libtorch) || die "$found"
    [[ $found != *"libtorch: none"* ]] || die "torch was installed in $venv, but CMake does not find it there"
  fi
  # The demo and the benchmarks need no test packages.
  [[ $preset == demo || $preset == bench ]] || install_python_tools "$(sed -n 's/.*libtorch: //p' <<<"$found")"
  [ "$preset" != campaign ] || cmake --workflow --preset python-campaign
  [ "$preset" = none ] || exec cmake --workflow --preset "$preset"
}

main "$@"
