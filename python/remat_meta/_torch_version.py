# SPDX-License-Identifier: BSD-3-Clause

"""Looks at torch before the bindings are loaded: with another minor version they would end in
`undefined symbol`."""

import importlib.util

from ._build_info import TORCH_VERSION, VERSION


def minor(version: str) -> str:
    """'2.11' of '2.11.0+cu130'."""
    return ".".join(version.split("+")[0].split(".")[:2])


def check(found: str, where: str) -> None:
    """Raises ImportError unless `found`, the version of the torch in `where`, fits."""
    expected = minor(TORCH_VERSION)
    if minor(found) == expected:
        return
    raise ImportError(
        f"[remat_meta] torch: expected {expected}.x (remat_meta {VERSION} was compiled for "
        f"{TORCH_VERSION}), got {found} in {where}. Run pip install 'torch=={expected}.*', or "
        "install remat_meta again from its source to compile it for the torch you have."
    )


def check_compiled(package: str) -> None:
    """Raises ImportError where a build has put the package's Python files only."""
    if importlib.util.find_spec(f"{package}._C"):
        return
    raise ImportError(
        f"[remat_meta] {package}._C: expected the compiled part beside the Python files, got none. "
        "Build it with ninja -C build/release remat_python (or your build folder), or run pip install ."
    )


def import_torch():
    """Imports a torch that fits, else raises ImportError."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        expected = minor(TORCH_VERSION)
        raise ImportError(
            f"[remat_meta] torch: expected {expected}.x, got none in this Python. "
            f"Run pip install 'torch=={expected}.*'."
        ) from None
    check(torch.__version__, torch.__path__[0])
    return torch
