# SPDX-License-Identifier: BSD-3-Clause

"""Runs programs in a process of their own: one that crashes or waits for ever is a fault like others."""

import faulthandler
import json
import os
import resource
import signal

from .generator import Generator
from .runner import Verdict, check, run_plain

MOST_SECONDS = 60


def verdicts(seeds):
    """(seed, Verdict) for each, in order."""
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
    """Gives a child its time again."""
    signal.alarm(MOST_SECONDS)
    return True


def _ends_plain(seed):
    """PyTorch itself has its faults, such as a hook on a complex tensor's .real that is then zeroed."""
    return next(in_child([lambda: run_plain(Generator(seed).program(), seed)])).kind == "crash"


def checked_in_child(program, seed):
    return next(in_child([lambda: check(program, seed)]))


def in_child(checks):
    """Their verdicts, up to the first that ends the process."""
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
        faulthandler.disable()  # pytest's: it prints as much for each try at making a program small
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
