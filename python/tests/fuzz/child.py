# SPDX-License-Identifier: BSD-3-Clause

"""Runs programs in a child process, so that one that crashes or hangs is a fault like others."""

import faulthandler
import json
import os
import resource
import signal

from .generator import Generator
from .runner import Verdict, check, run_plain

MOST_SECONDS = 60


def verdicts(seeds):
    """Yields (seed, Verdict) for each seed, in order."""
    waiting = list(seeds)
    while waiting:
        done = 0
        for verdict in in_child([(lambda seed=seed: check(Generator(seed).program(), seed)) for seed in waiting]):
            seed = waiting[done]
            if verdict.kind == "crash" and _ends_plain(seed):
                verdict = Verdict("raises", "plain code ends the process")
            yield seed, verdict
            done += 1
        waiting = waiting[done:]


def still_alive():
    """Restarts a child's time limit."""
    signal.alarm(MOST_SECONDS)
    return True


def _ends_plain(seed):
    """True if plain code crashes too: PyTorch has its own faults, such as a hook on a complex .real that is then zeroed."""
    return next(in_child([lambda: run_plain(Generator(seed).program(), seed)])).kind == "crash"


def checked_in_child(program, seed):
    return next(in_child([lambda: check(program, seed)]))


def in_child(checks):
    """Returns the verdicts, up to the first check that ends the process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _write_verdicts(checks, writer)
    os.close(writer)
    count = 0
    with os.fdopen(reader) as lines:
        for line in lines:
            count += 1
            yield Verdict(*json.loads(line))
    _, status = os.waitpid(child, 0)
    if count < len(checks):
        yield Verdict("crash", _ending(status))


def _write_verdicts(checks, writer):
    status = 1
    try:
        faulthandler.disable()  # the handler of pytest would print at each attempt to shrink a program
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for check_next in checks:
            signal.alarm(MOST_SECONDS)
            verdict = check_next()
            os.write(writer, (json.dumps([verdict.kind, verdict.text]) + "\n").encode())
        status = 0
    finally:
        os._exit(status)


def _ending(status):
    if not os.WIFSIGNALED(status):
        return f"exit {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    return "waits for ever" if number == signal.SIGALRM else signal.Signals(number).name
