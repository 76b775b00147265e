# SPDX-License-Identifier: BSD-3-Clause

"""Runs the tests of a build folder with other libraries than they were built with."""

import hashlib
import html
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

# Tests that load none of our libraries at run time, or that build one.
LEFT_OUT = ("compile_fail.", "consumer.", "load.", "mutants.")
FUZZ_PROGRAMS = "2000"


@dataclass(frozen=True)
class Outcome:
    red: bool
    case: str  # the first case that failed; empty if not known
    seconds: float


@dataclass(frozen=True)
class Suite:
    name: str
    command: tuple[str, ...]
    folder: str
    environment: tuple[str, ...]
    timeout_s: float

    @property
    def is_pytest(self) -> bool:
        return "pytest" in self.command

    @property
    def is_catch(self) -> bool:
        return "--durations" in self.command

    def run(self, libraries: Path, case: str = "") -> Outcome:
        """Runs the suite up to the first failure, or only `case`."""
        start = time.monotonic()
        process = subprocess.Popen(
            self._command(case), cwd=self.folder, env=self._environment(libraries), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        timed_out = False
        try:
            output, _ = process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        except BaseException:  # also when this run is stopped
            os.killpg(process.pid, signal.SIGKILL)
            raise
        seconds = time.monotonic() - start
        if process.returncode == 0:
            return Outcome(False, "", seconds)
        return Outcome(True, self._failed_case(output, timed_out), seconds)

    def fingerprint(self) -> str:
        """Returns a hash of everything that decides whether the suite turns red, except the libraries."""
        digest = hashlib.sha256(repr(self.command).encode())
        for file in (Path(self.folder, part) for part in self.command):
            if not file.is_file() or (self.is_pytest and file.suffix != ".py"):
                continue
            digest.update(file.read_bytes())
        return digest.hexdigest()[:12]

    def _command(self, case: str) -> list[str]:
        command = list(self.command)
        if self.is_pytest:
            command = [part for part in command if part != "-q"]
            if case:
                command = [part for part in command if not part.endswith(".py")] + [case]
            return [*command, "-x", "-v"]
        if self.is_catch:
            durations = command.index("--durations")  # after the program, which run.sh may start
            selected = [re.sub(r'([\\,\[\]"~*])', r"\\\1", case)] if case else command[durations + 2:]
            command = [*command[:durations], "--abort", "--reporter", "xml", "--warn", "NoTests", *selected]
        return command

    def _environment(self, libraries: Path) -> dict[str, str]:
        own = dict(entry.split("=", 1) for entry in self.environment)
        fuzz = {"REMAT_FUZZ_N": os.environ.get("REMAT_FUZZ_N", FUZZ_PROGRAMS)}
        # LD_LIBRARY_PATH wins over the RUNPATH that the build wrote into programs and libraries.
        return {**os.environ, **fuzz, **own, "LD_LIBRARY_PATH": str(libraries), "PYTHONUNBUFFERED": "1"}

    def _failed_case(self, output: str, timed_out: bool) -> str:
        if self.is_catch:
            names = re.findall(r'<TestCase name="([^"]*)"', output)
            return html.unescape(names[-1]) if names else ""
        if not self.is_pytest:
            return ""
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.MULTILINE)
        if failed and not timed_out:
            return failed[0]
        # The output of a test that crashes follows its name, which may have spaces in its parameters.
        started = re.findall(r"^(\S+\.py::[^\s\[]+(?:\[.*?\])?)(?=\s|$)", output, re.MULTILINE)
        return started[-1] if started else ""


def judged_command(command: list[str]) -> tuple[str, ...]:
    """Returns the command that tests/within_budget.sh runs."""
    return tuple(command[command.index("--") + 1:])


def read_suites(build: Path) -> dict[str, Suite]:
    """Returns the suites by name, those with the shortest budget first, without those that are not built."""
    listed = subprocess.run(
        ["ctest", "--test-dir", str(build), "--show-only=json-v1"], check=True, capture_output=True, text=True)
    suites = []
    for test in json.loads(listed.stdout)["tests"]:
        if "command" not in test or test["name"].startswith(LEFT_OUT):
            continue
        properties = {entry["name"]: entry["value"] for entry in test["properties"]}
        suites.append(Suite(
            test["name"], judged_command(test["command"]), properties["WORKING_DIRECTORY"],
            tuple(properties.get("ENVIRONMENT", ())), float(properties["TIMEOUT"])))
    suites.sort(key=lambda suite: suite.timeout_s)
    return {suite.name: suite for suite in suites}


def check_overridden(program: Path, libraries: Path) -> None:
    """Raises unless the program takes our libraries from `libraries`."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    text = subprocess.run(["ldd", program], env=environment, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"libremat\S* => (\S+)", text)
    strange = [path for path in found if not path.startswith(str(libraries))]
    if not found or strange:
        raise SystemExit(f"[mutants] {program}: expected libraries in {libraries}, got {strange or 'none'}. "
                         "Was it linked with RPATH instead of RUNPATH?")
