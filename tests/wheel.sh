#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# wheel.sh [MINOR-PYTHON ...]: the wheel of wheelhouse/ (tools/build_wheels.sh) in a clean venv for each minor version of torch and
# each Python here, as 2.12-3.13: installs it, runs `python -m remat_meta`, trains three models of Transformers plainly and on
# remat, and looks at what an import takes. Called again it goes on where it was stopped; a venv that has passed is deleted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/wheels/pythons.sh

die() {
  printf '[wheel] %s\n' "$*" >&2
  exit 1
}

shopt -s nullglob
wheels=("$PWD"/wheelhouse/remat_meta-*.whl)
[ "${#wheels[@]}" -eq 1 ] || die "expected one wheel in wheelhouse/, got ${#wheels[@]}. Run tools/build_wheels.sh"
readonly wheel=${wheels[0]}
readonly work=$PWD/build/wheels
readonly uv=$work/tools/bin/uv
export UV_CACHE_DIR=$work/uv-cache
passed=$work/passed.$(sha256sum "$wheel" | cut -c 1-16)
touch "$passed"

# Prints MINOR-PYTHON for each pair for which the wheel has bindings and this machine an interpreter.
pairs() {
  local name minor python
  while read -r name; do
    minor=$(sed -nE 's|.*/torch_([0-9]+)_([0-9]+)/.*|\1.\2|p' <<<"$name")
    python=$(sed -nE 's|.*cpython-3([0-9]+)-.*|3.\1|p' <<<"$name")
    [ -z "$(interpreters_of "$python")" ] || echo "$minor-$python"
  done < <(python3 -m zipfile -l "$wheel" | grep -o 'remat_meta/torch_[0-9_]*/_C\.cpython[^ ]*')
}

try_pair() {
  local minor=${1%-*} python=${1#*-} venv=$work/venvs/$1
  rm -rf "$venv"
  "$uv" venv -q --python "$(interpreters_of "$python" | tail -n 1)" "$venv"
  # triton is large and needs a GPU.
  "$uv" pip install -q --python "$venv/bin/python" --override <(echo "triton; sys_platform == 'never'") \
    "torch==$minor.*" 'transformers>=4.57' numpy "$wheel"
  cd "$venv"
  bin/python -m remat_meta
  bin/python "$OLDPWD/tests/wheel/three_models.py"
  bin/python -c 'import time, torch
start = time.perf_counter()
import remat_meta
print(f"import: {1e3 * (time.perf_counter() - start):.0f} ms over that of torch")'
  cd "$OLDPWD"
  rm -rf "$venv"
}

# Runs in its own process, which ends at the first command that fails.
if [ "${1:-}" = --try ]; then
  try_pair "$2"
  exit
fi
for pair in ${@:-$(pairs)}; do
  grep -qxF "$pair" "$passed" && continue
  echo "[wheel] torch ${pair%-*}, Python ${pair#*-}"
  if tests/wheel.sh --try "$pair"; then
    echo "$pair" >>"$passed"
  else
    echo "[wheel] FAILED $pair"
  fi
done
echo "[wheel] $(basename "$wheel"): passed $(sort -u "$passed" | wc -l) of $(pairs | wc -l) pairs: $(sort -uV "$passed" | tr '\n' ' ')"
[ "$(sort -u "$passed" | wc -l)" -ge "$(pairs | wc -l)" ]
