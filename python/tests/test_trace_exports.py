# SPDX-License-Identifier: BSD-3-Clause

"""Files that remat-trace writes for other programs, read by those programs' own code."""

import collections
import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

import remat_meta as remat

PROGRAM = os.environ.get("REMAT_TRACE_PROGRAM")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="remat-trace is not built")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recording of two steps, and every export of remat-trace."""
    folder = tmp_path_factory.mktemp("exports")
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    x = torch.randn(4, 16, requires_grad=True)
    with remat.record(folder / "step.rec") as recording:
        for step in range(2):
            y = remat.checkpoint(region_name="block", replay="tape")(model)(x)
            remat.checkpoint(region_name="second")(model)(y).sum().backward()
            recording.mark(f"step {step}")
    subprocess.run(
        [PROGRAM, "step.rec", "--chrome", "chrome.json", "--snapshot", "step.pickle"],
        cwd=folder,
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def chrome(folder):
    return json.loads((folder / "chrome.json").read_text())["traceEvents"]


@pytest.fixture(scope="module")
def snapshot(folder):
    return pickle.loads((folder / "step.pickle").read_bytes())


def test_each_arrow_joins_an_op_to_one_that_runs_it_again(chrome):
    ops = {(event["tid"], event["ts"], event["name"]): event for event in chrome if event.get("cat") == "op"}
    ends = {event["id"]: event for event in chrome if event["ph"] == "f"}
    begins = [event for event in chrome if event["ph"] == "s"]
    assert begins and len(begins) == len(ends)

    def names_at(event, phase):
        return {
            name
            for (tid, ts, name), op in ops.items()
            if (tid, ts) == (event["tid"], event["ts"]) and op["args"]["phase"] == phase
        }

    for begin in begins:
        end = ends[begin["id"]]
        assert names_at(begin, "forward") & names_at(end, "replay")
        assert begin["ts"] < end["ts"]


def test_a_snapshot_ends_with_what_is_alive(snapshot, chrome):
    alive, room = {}, {}
    (trace,) = snapshot["device_traces"]
    for entry in trace:
        action, address, size = entry["action"], entry["addr"], entry["size"]
        if action == "segment_alloc":
            assert room.setdefault(address, size) == size and address not in alive
        elif action == "alloc":  # the viewer draws blocks in existing segments
            assert alive.setdefault(address, size) == room[address] == size
        elif action == "free_completed":
            assert alive.pop(address) == size
        elif action == "segment_free":
            assert room.pop(address) == size and address not in alive
        else:
            assert action == "free_requested" and alive[address] == size
    assert room == alive
    assert [entry["time_us"] for entry in trace] == sorted(entry["time_us"] for entry in trace)
    counters = [event for event in chrome if event["name"] == "bytes alive"]
    assert sum(alive.values()) == sum(counters[-1]["args"].values()) > 0
    assert alive == {segment["address"]: segment["total_size"] for segment in snapshot["segments"]}
    kinds = collections.Counter()
    for segment in snapshot["segments"]:
        kinds[segment["frames"][-1]["name"]] += segment["total_size"]
    assert kinds == {kind: bytes_ for kind, bytes_ in counters[-1]["args"].items() if bytes_}


def test_torch_reads_a_snapshot(snapshot):
    total = sum(segment["total_size"] for segment in snapshot["segments"])
    assert f"total_allocated: {_memory_viz.Bytes(total)}\n" in _memory_viz.segsum(snapshot)
    listed = _memory_viz.trace(snapshot)
    assert "Device 0 ---" in listed and "= cudaMalloc(" in listed
    frames = []
    _memory_viz.memory(snapshot, format_flamegraph=frames.append)
    assert sum(int(line.rsplit(" ", 1)[1]) for line in frames[0].splitlines()) == total
    assert "region 'second', slot 0:0:aten::addmm" in frames[0]  # the result of addmm
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert "MemoryViz.js" in page and "snapshot.pickle" in page


def test_the_command_line_of_torch_reads_a_snapshot(folder):
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "stats", str(folder / "step.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "total_allocated: " in done.stdout
