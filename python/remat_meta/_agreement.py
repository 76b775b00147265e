# SPDX-License-Identifier: BSD-3-Clause

"""Compares the settings of regions between ranks before the first backward.

When a rank first meets a region in a forward, it writes the region's settings to the store of the process group; when it
begins a backward, it reads what other ranks have written. Ranks use only the store, and no rank waits for the backward of
another rank, so that stages of a pipeline may take turns.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import logging
import os
import threading
import time
from pathlib import Path

import torch

from . import _C, _default_group

_VARIABLE = "REMAT_AGREEMENT"
_OF_ONE_RANK = {_VARIABLE, "REMAT_RECORD", "REMAT_RECORD_LINES", "REMAT_DEBUG"}  # ranks may differ in these

_PATIENCE_S = 3.0  # longest wait in the first backward, for ranks that have met fewer regions than this rank
_LATER_PATIENCE_S = 1.0  # longest wait in a later backward, after this rank has met another region
_POLL_S = 0.005
_LOOK_AGAIN_S = 1.0
_KNOWN_COUNT = 1000
_SHOWN = 200  # most characters of a setting that an error shows

_logger = logging.getLogger("remat_meta")


def name_of(function):
    """Returns a name for the function that is the same on all ranks."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__qualname__"):
        function = type(function)
    return f"{function.__module__}.{function.__qualname__}"


def _hash(text):
    return hashlib.sha1(text.encode()).hexdigest()[:12]


def _text_of(value):
    """Returns a text for a setting; ranks with equal settings get equal texts."""
    if value is None:
        text = "none"
    elif isinstance(value, (str, int, bool)):
        text = str(value)
    elif hasattr(value, "to_json"):
        text = value.to_json()
    elif dataclasses.is_dataclass(value):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        text = ", ".join(f"{name} {_text_of(part)}" for name, part in fields)
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(map(_text_of, value))}]"
    elif isinstance(value, (enum.Enum, torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        text = str(value)
    else:
        text = name_of(value)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({_hash(text)})"


def _settings(engine, intercept, policy, cuts, plan):
    return {
        "engine": "tape" if plan else engine,
        "intercept": str(intercept),
        "policy": _text_of(policy),
        "cuts": _text_of(cuts),
        "plan": _text_of(plan and plan.cuts),
    }


def _value_of(variable):
    """Returns a variable's value; for a file, a hash of its content, since ranks may have the file in different places."""
    value = os.environ[variable]
    if variable == "REMAT_POLICY" and Path(value).is_file():
        return f"a file ({_hash(Path(value).read_text())})"
    return value


def _environment():
    names = sorted(name for name in os.environ if name.startswith("REMAT_") and name not in _OF_ONE_RANK)
    versions = {"version of remat": _C.version, "version of torch": torch.__version__}
    return {**versions, **{name: _value_of(name) for name in names}}


def _difference(where, one, other):
    """Returns the text of the error for two ranks, each a dict of its rank and settings; None if the settings are equal."""
    one, other = sorted((one, other), key=lambda record: record["rank"])
    names = sorted(one["settings"].keys() | other["settings"].keys())
    found = []
    for name in names:
        values = [record["settings"].get(name, "unset") for record in (one, other)]
        if values[0] != values[1]:
            found.append(f"{name} {values[0]} on rank {one['rank']} and {values[1]} on rank {other['rank']}")
    if not found:
        return None
    return (
        f"[agreement] {where}: expected the same settings on all ranks, got {'; '.join(found)}. Set the same. Where "
        f"ranks are to differ (stages of a pipeline), give their regions other names, or set {_VARIABLE}=0 on all."
    )


class _Agreement:
    """The agreement of one process group, as this rank sees it.

    A rank's place is the list, in order, of the regions that the rank has met and of the backward passes that it has begun
    after them. For each place the store counts the ranks that have reached the place and the ranks that have left it. Ranks
    that are still at one of this rank's earlier places may yet come to its present place, so this rank waits for them.
    """

    def __init__(self, store, rank, world):
        self._store = torch.distributed.PrefixStore("agreement", store)
        self._rank = rank
        self._world = world
        self._lock = threading.Lock()
        self._met = {}  # settings by region, in the order in which they were met
        self._places = [""]  # hashes of this rank's places since the last compared backward, the present place last
        self._is_new = False
        self._patience_s = _PATIENCE_S
        self._look_at_s = 0.0

    def meet(self, where, settings):
        """Notes that this rank has a region `where` with these settings."""
        with self._lock:
            met = self._met.setdefault(where, [])
            if settings in met:
                return
            met.append(settings)
            self._is_new = True
            self._publish(where, len(met), settings)

    def _publish(self, where, number, settings):
        own = {"rank": self._rank, "settings": settings}
        first = json.loads(self._store.compare_set(f"region/{where}/{number}", "", json.dumps(own)))
        found = _difference(where, own, first)
        if found:
            self._store.compare_set("difference", "", found)
        self._go_to(where)

    def _go_to(self, name):
        left = self._places[-1]
        self._places.append(_hash(f"{left} {name}"))
        self._store.add(f"came/{self._places[-1]}", 1)
        self._store.add(f"left/{left}", 1)

    def compare(self):
        """Call it when a backward begins. Raises ValueError if ranks have different settings."""
        now_s = time.monotonic()
        if not self._is_new and now_s < self._look_at_s:
            return
        with self._lock:
            if self._is_new:
                self._wait(now_s + self._patience_s)
            self._raise_difference()
            if self._is_new:
                self._go_to("backward")
                self._places = self._places[-1:]
                self._patience_s = _LATER_PATIENCE_S
            self._is_new = False
            self._look_at_s = now_s + _LOOK_AGAIN_S

    def _wait(self, until_s):
        for place in self._places[:-1]:
            while (missing := self._missing(place)) > 0:
                self._raise_difference()
                if time.monotonic() >= until_s:
                    _logger.info(
                        "[agreement] %d ranks have not met the regions of this rank. Their settings are compared when they do.",
                        missing,
                    )
                    self._store.add(f"left/{place}", missing)  # so that other ranks do not wait as well
                    break
                time.sleep(_POLL_S)

    def _missing(self, place):
        came = self._store.add(f"came/{place}", 0) if place else self._world
        return came - self._store.add(f"left/{place}", 0)

    def _raise_difference(self):
        if self._store.check(["difference"]):
            raise ValueError(self._store.get("difference").decode())


_current = None
_known = {}  # regions reported to the current group, whose settings need not be turned into text again


def _unless_store_is_gone(use, *args):
    """Calls use(*args). If the rank that hosts the store has ended, stops comparing, and does not raise."""
    try:
        use(*args)
    except RuntimeError as error:
        _logger.info("[agreement] ranks are not compared any more: %s", error)
        _begin(None)


_NO_OPTIONS = {}


def _meet_region(options, function):
    """Called for each region unless the last region with the same options had the same function."""
    get = (options or _NO_OPTIONS).get
    name, engine, intercept = get("region_name"), get("replay", "function"), get("intercept", True)
    where = f"region '{name}'" if name else f"region of {name_of(function)}"
    objects = get("policy"), get("cuts"), get("plan")
    key = (where, engine, intercept, *map(id, objects))
    if key in _known:
        return
    if len(_known) >= _KNOWN_COUNT:
        _known.clear()
    _known[key] = objects  # keeps the objects alive, so that their ids stay unique
    meet(where, _settings(engine, intercept, *objects))


def meet(where, settings):
    if _current is None:
        return
    if not _current._met:
        _unless_store_is_gone(_current.meet, "environment", _environment())
    if _current is not None:
        _unless_store_is_gone(_current.meet, where, settings)


def before_backward():
    if _current is not None:
        _unless_store_is_gone(_current.compare)


def _begin(members):
    global _current
    _current = _Agreement(*members) if members else None
    _known.clear()
    _C._set_agreement(_meet_region if members else None)


def install():
    if os.environ.get(_VARIABLE) != "0":
        _default_group.follow(_begin)
