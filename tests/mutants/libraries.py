# SPDX-License-Identifier: BSD-3-Clause

"""Builds the libraries from a copy of the sources in which one thing is broken at a time."""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from mutant_list import MODULES, ROOT, Mutant

OPTIONS = ("TESTS", "BENCH", "TOOLS", "EXAMPLES", "PYTHON")


class DoesNotCompile(Exception):
    pass


class Libraries:
    """`output` holds the shared libraries as they are now, `unbroken` those without a mutant."""

    def __init__(self, folder: Path, release: Path):
        self.source = folder / "source"
        # As deep as the real build folder, so that ccache finds objects that were compiled there.
        self.folder = self.source / "build" / "release"
        self.output = self.folder / "lib"
        self.unbroken = folder / "unbroken"
        self._copy_sources()
        if not (self.folder / "build.ninja").exists():
            self._configure(self._torch_of(release))

    def build(self) -> None:
        finished = subprocess.run(["ninja", "-C", self.folder], capture_output=True, text=True)
        if finished.returncode != 0:
            raise DoesNotCompile(finished.stdout[-4000:])

    def keep_unbroken(self) -> None:
        shutil.rmtree(self.unbroken, ignore_errors=True)
        shutil.copytree(self.output, self.unbroken, symlinks=True)

    @contextlib.contextmanager
    def broken_by(self, mutant: Mutant):
        path = self.source / mutant.file
        whole = path.read_text()
        try:
            path.write_text(mutant.applied(whole))
            self.build()
            yield
        finally:
            path.write_text(whole)

    def _copy_sources(self) -> None:
        wanted = [ROOT / "CMakeLists.txt"]
        for part in ("cmake", "include", *MODULES):
            wanted += [file for file in (ROOT / part).rglob("*") if file.is_file()]
        for file in wanted:
            copy = self.source / file.relative_to(ROOT)
            if copy.exists() and copy.read_bytes() == file.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
        for part in ("include", *MODULES):
            for copy in (self.source / part).rglob("*"):
                if copy.is_file() and not (ROOT / copy.relative_to(self.source)).exists():
                    copy.unlink()

    def _torch_of(self, release: Path) -> Path:
        """Returns the LibTorch of the tests, by a path inside the copy if it lies in our build folder."""
        found = re.search(r"^LibTorch_LAST_ROOT:\w+=(.+)$", (release / "CMakeCache.txt").read_text(), re.MULTILINE)
        torch = Path(found.group(1))
        build = ROOT / "build"
        if not torch.is_relative_to(build):
            return torch
        first = torch.relative_to(build).parts[0]
        link = self.source / "build" / first
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            os.symlink(build / first, link)
        return self.source / "build" / torch.relative_to(build)

    def _configure(self, torch: Path) -> None:
        off = [f"-DREMAT_BUILD_{option}=OFF" for option in OPTIONS]
        subprocess.run(
            ["cmake", "-S", self.source, "-B", self.folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             "-DREMAT_INSTALL=OFF", f"-DLibTorch_ROOT={torch}", f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={self.output}", *off],
            check=True, stdout=subprocess.DEVNULL)
