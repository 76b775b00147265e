# SPDX-License-Identifier: BSD-3-Clause

"""Finds the package's compiled part for the running torch and Python before loading it, because a part that was compiled for
another torch would fail with `undefined symbol`.

Each minor version of torch has a folder, such as torch_2_11, with bindings for each Python. A wheel has several folders, a
local build has one.
"""

import importlib.machinery
import os
import platform
import re

_OLDEST, _NEWEST = (2, 10), (2, 15)  # versions that the source supports


def minor(version: str) -> str:
    """Returns the minor version, such as '2.11' for '2.11.0+cu130'."""
    return ".".join(version.split("+")[0].split(".")[:2])


def compiled_versions(package: str) -> list[str]:
    """Returns the minor versions of torch for which this package has a compiled part."""
    found = [re.fullmatch(r"torch_(\d+)_(\d+)", name) for name in os.listdir(package)]
    versions = sorted((int(match[1]), int(match[2])) for match in found if match)
    return [f"{major}.{minor}" for major, minor in versions]


def compiled_folder(package: str) -> str:
    """Returns the folder with the compiled part for the running torch and Python. Raises ImportError if there is none."""
    versions = compiled_versions(package)
    if not versions:
        raise ImportError(
            f"[remat_meta] {package}/torch_*: expected the compiled part beside the Python files, got none. "
            "Build it with ninja -C build/release remat_python (or your build folder), or run pip install ."
        )
    torch = import_torch(versions)
    check_torch(torch.__version__, torch.__path__[0], versions)
    folder = os.path.join(package, f"torch_{minor(torch.__version__).replace('.', '_')}")
    check_python(folder)
    check_abi(torch)
    return folder


def one_of(versions: list[str]) -> str:
    return f"{versions[0]}.x" if len(versions) == 1 else f"{', '.join(versions[:-1])} or {versions[-1]}"


def to_install(versions: list[str]) -> str:
    return f"Run pip install 'torch=={versions[-1]}.*'"


def import_torch(versions: list[str]):
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"[remat_meta] torch: expected {one_of(versions)}, got none in this Python. {to_install(versions)}."
        ) from None
    return torch


def check_torch(found: str, where: str, versions: list[str]) -> None:
    """Raises ImportError unless `found`, the version of the torch in `where`, is one of `versions`."""
    if minor(found) in versions:
        return
    numbers = re.match(r"(\d+)\.(\d+)", found)
    has_source = numbers and _OLDEST <= (int(numbers[1]), int(numbers[2])) <= _NEWEST
    source = ", or install remat_meta from its source, which compiles it for the torch you have" if has_source else ""
    raise ImportError(
        f"[remat_meta] torch: expected {one_of(versions)}, for which this remat_meta was compiled, got {found} in {where}. "
        f"{to_install(versions)}{source}."
    )


def check_python(folder: str) -> None:
    """Raises ImportError unless the folder has bindings for the running Python."""
    ends = importlib.machinery.EXTENSION_SUFFIXES
    names = [name for name in os.listdir(folder) if name.startswith("_C.")]
    if any(name == f"_C{end}" for name in names for end in ends):
        return
    there = sorted(name.removeprefix("_C.").removesuffix(".so") for name in names)
    raise ImportError(
        f"[remat_meta] Python: expected one for which {folder} has bindings ({', '.join(there)}), got "
        f"{platform.python_implementation()} {platform.python_version()}, which loads _C{ends[0]}. Use one of those, or "
        "install remat_meta from its source, which compiles it for the Python you have."
    )


def check_abi(torch) -> None:
    """Raises ImportError if torch was compiled with the old C++ string ABI, as some self-built versions are."""
    if torch.compiled_with_cxx11_abi():
        return
    raise ImportError(
        f"[remat_meta] torch {torch.__version__} in {torch.__path__[0]}: expected the C++11 ABI, got the one before it "
        "(_GLIBCXX_USE_CXX11_ABI=0). Use torch from PyPI or pytorch.org, or build yours with the C++11 ABI."
    )
