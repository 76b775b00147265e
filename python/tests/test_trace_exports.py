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
        [PROGRAM, "step.rec", "--chrome", "chrome.json", "--perfetto", "step.pftrace", "--snapshot", "step.pickle"],
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


class Perfetto:
    """A trace parsed by Perfetto's own definitions, with names in place of their numbers."""

    def __init__(self, path):
        pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
        trace = pb2.Trace()
        trace.ParseFromString(path.read_bytes())
        assert trace.packet[0].sequence_flags == 3  # SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE
        self.tracks, self.slices, self.instants, self.counters = {}, [], [], collections.defaultdict(list)
        self.event_type = pb2.TrackEvent
        self.names = {"event_names": {}, "debug_annotation_names": {}, "debug_annotation_string_values": {}}
        self.open = collections.defaultdict(list)
        for packet in trace.packet:
            self.read(packet)
        assert not any(self.open.values())

    def read(self, packet):
        assert not packet.ListFields() or packet.trusted_packet_sequence_id == 1
        for field, known in self.names.items():
            for entry in getattr(packet.interned_data, field):
                known[entry.iid] = entry.str.decode() if field.endswith("values") else entry.name
        if packet.HasField("track_descriptor"):
            self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            self.read_event(packet.timestamp, packet.track_event)

    def read_event(self, time, event):
        open_slices = self.open[event.track_uuid]
        name = self.names["event_names"].get(event.name_iid)
        if event.type == self.event_type.TYPE_COUNTER:
            self.counters[self.tracks[event.track_uuid].name].append((time, event.counter_value))
        elif event.type == self.event_type.TYPE_INSTANT:
            self.instants.append(name)
        elif event.type == self.event_type.TYPE_SLICE_END:
            open_slices.pop()["end"] = time
        else:
            assert event.type == self.event_type.TYPE_SLICE_BEGIN
            slice_ = {"name": name, "begin": time, "track": event.track_uuid, "event": event}
            slice_["args"] = {
                self.names["debug_annotation_names"][one.name_iid]: self.names["debug_annotation_string_values"][
                    one.string_value_iid
                ]
                for one in event.debug_annotations
            }
            slice_["around"] = open_slices[-1] if open_slices else None
            open_slices.append(slice_)
            self.slices.append(slice_)


@pytest.fixture(scope="module")
def perfetto(folder):
    return Perfetto(folder / "step.pftrace")


def test_perfetto_has_the_slices_of_the_chrome_trace(perfetto, chrome):
    def told(name, begin, duration):
        return name, round(begin, 3), round(duration, 3)

    expected = [told(event["name"], event["ts"], event["dur"]) for event in chrome if event["ph"] == "X"]
    got = [told(one["name"], one["begin"] / 1e3, (one["end"] - one["begin"]) / 1e3) for one in perfetto.slices]
    assert sorted(got) == sorted(expected)
    assert len(got) > 20
    assert perfetto.instants == ["step 0", "step 1"]


def test_slices_of_perfetto_nest(perfetto):
    for one in perfetto.slices:
        if one["around"]:
            assert one["around"]["begin"] <= one["begin"] and one["end"] <= one["around"]["end"]
    replayed = [one for one in perfetto.slices if one["args"].get("phase") == "replay" and one["name"].startswith("aten::")]
    assert replayed
    for one in replayed:
        assert perfetto.tracks[one["track"]].name == "replays"
        while one["around"]:
            one = one["around"]
        assert one["args"]["from"] in ("its tape", "its function")


def test_each_flow_of_perfetto_joins_an_op_to_one_that_runs_it_again(perfetto, chrome):
    begins = {flow: one for one in perfetto.slices for flow in one["event"].flow_ids}
    ends = {flow: one for one in perfetto.slices for flow in one["event"].terminating_flow_ids}
    assert begins.keys() == ends.keys()
    assert begins
    assert len(begins) == sum(event["ph"] == "s" for event in chrome)
    for flow, forward in begins.items():
        assert forward["name"] == ends[flow]["name"]
        assert forward["args"]["phase"] == "forward" and ends[flow]["args"]["phase"] == "replay"
        assert forward["begin"] < ends[flow]["begin"]


def test_counters_of_perfetto_are_of_bytes_and_add_up(perfetto, chrome):
    total = perfetto.counters.pop("bytes alive")
    assert total == [
        (round(event["ts"] * 1e3), sum(event["args"].values())) for event in chrome if event["name"] == "bytes alive"
    ]
    assert sum(values[-1][1] for values in perfetto.counters.values()) == total[-1][1]
    counters = [track for track in perfetto.tracks.values() if track.HasField("counter")]
    assert all(track.counter.unit == track.counter.UNIT_SIZE_BYTES for track in counters)
    (process,) = [uuid for uuid, track in perfetto.tracks.items() if track.process.pid == os.getpid()]
    assert all(track.parent_uuid == process for track in counters)


def test_a_snapshot_is_the_same_as_json(folder, snapshot):
    assert json.loads((folder / "step.pickle.json").read_text()) == snapshot


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
    assert "region 'second', slot 0:0:aten::addmm" in frames[0]  # its result
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert "MemoryViz.js" in page and "snapshot.pickle" in page


def test_the_command_line_of_torch_reads_a_snapshot(folder):
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "stats", str(folder / "step.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "total_allocated: " in done.stdout
