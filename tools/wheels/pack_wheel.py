# SPDX-License-Identifier: BSD-3-Clause

"""Packs the wheel from the Python files and the libraries that build_wheels.sh compiled for each torch. Checks that it has no
symbols newer than manylinux_2_28, needs only libraries of torch and the system, has the right RUNPATHs, and is small enough."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# RUNPATHs of libraries by folder. They name the folder itself, lib (shared by all versions of torch), and torch's libraries.
RUNPATHS = {"torch": "$ORIGIN:$ORIGIN/../lib:$ORIGIN/../../torch/lib", "lib": "$ORIGIN"}
NEEDED = re.compile(
    r"libremat\w*\.so\.[\d.]+|libc10\.so|libtorch(_cpu|_python)?\.so|lib(c|m|dl|pthread|stdc\+\+|gcc_s)\.so\.\d+|ld-linux-x86-64\.so\.2"
)


def fail(text: str) -> None:
    sys.exit(f"[wheels] {text}")


def metadata_of(sdist: pathlib.Path) -> str:
    """Returns the sdist's PKG-INFO, which has the content of a wheel's METADATA."""
    with tarfile.open(sdist) as archive:
        name = next(n for n in archive.getnames() if n.count("/") == 1 and n.endswith("/PKG-INFO"))
        return archive.extractfile(name).read().decode()


def fill(folder: pathlib.Path, given: argparse.Namespace) -> None:
    """Copies all files of the wheel but its RECORD."""
    package = folder / "remat_meta"
    shutil.copytree(ROOT / "python/remat_meta", package, ignore=shutil.ignore_patterns("*.in", "__pycache__", "torch_*"))
    shutil.copytree(given.compiled / "lib", package / "lib")
    for minor in given.minors:
        name = f"torch_{minor.replace('.', '_')}"
        shutil.copytree(given.compiled / name, package / name)
    metadata = metadata_of(given.sdist)
    version = re.search(r"^Version: (.+)$", metadata, re.MULTILINE)[1]
    info = folder / f"remat_meta-{version}.dist-info"
    (info / "licenses").mkdir(parents=True)
    (info / "METADATA").write_text(metadata)
    shutil.copy(ROOT / "LICENSE", info / "licenses/LICENSE")
    # py3, because a wheel has bindings for several Pythons; remat_meta/_torch_version.py explains when a binding is missing.
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: remat\nRoot-Is-Purelib: false\nTag: py3-none-{given.platform}\n"
    )


def check_library(path: pathlib.Path) -> None:
    """Fails if the library needs libraries other than remat's, torch's and the system's, or has an unexpected RUNPATH."""
    text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    runpath = re.search(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text)
    expected = RUNPATHS[path.parent.name.partition("_")[0]]
    if not runpath or runpath[1] != expected:
        fail(f"{path}: RUNPATH: expected {expected}, got {runpath and runpath[1]}")
    strange = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text) if not NEEDED.fullmatch(name)]
    if strange:
        fail(f"{path}: expected to need libraries of remat, torch and the system only, got {', '.join(strange)}")


def check(wheel: pathlib.Path, given: argparse.Namespace) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True
    ).stdout
    print(done.strip())
    # auditwheel cannot know that torch's libraries will be there, so its verdict does not count; the symbols that it lists do.
    needed = re.search(r'constrains\s+the\s+platform\s+tag\s+to\s+"manylinux_(\d+)_(\d+)_', done)
    offered = re.match(r"manylinux_(\d+)_(\d+)_", given.platform)
    if not needed or tuple(map(int, needed.groups())) > tuple(map(int, offered.groups())):
        wheel.unlink()  # nobody should install it
        fail(
            f"{wheel.name}: expected symbols of {given.platform} or older, got the newer ones above (nm -D says which library "
            "asks for them). Leave them out, or add them to tools/wheels/newer_symbols.cpp"
        )
    size = wheel.stat().st_size
    if size > given.most_bytes:
        fail(f"{wheel.name}: expected at most {given.most_bytes} bytes, got {size}")
    print(f"[wheels] {wheel}: {size / 1e6:.1f} MB, torch {', '.join(given.minors)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiled", type=pathlib.Path, required=True)
    parser.add_argument("--sdist", type=pathlib.Path, required=True)
    parser.add_argument("--platform", required=True)
    parser.add_argument("--most-bytes", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("minors", nargs="+")
    given = parser.parse_args()

    folder = given.compiled.parent / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    fill(folder, given)
    for library in folder.rglob("*.so*"):
        check_library(library)
    for old in given.out.glob("remat_meta-*.whl"):
        old.unlink()
    subprocess.run([sys.executable, "-m", "wheel", "pack", "-d", given.out, folder], check=True, stdout=subprocess.DEVNULL)
    check(next(given.out.glob("remat_meta-*.whl")), given)


if __name__ == "__main__":
    main()
