# SPDX-License-Identifier: BSD-3-Clause

"""record() and REMAT_RECORD: write the events of a program to a file."""

import contextlib
import gc
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import remat_meta as remat
from remat_meta import report

TRACE = os.environ.get("REMAT_TRACE_PROGRAM")
STEPS = int(os.environ.get("REMAT_SOAK_STEPS", "3000"))


def step():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)
    remat.checkpoint(region_name="block")(model)(x).sum().backward()
    return x.grad


def test_a_recording_changes_nothing_and_ends_with_its_block(tmp_path):
    torch.manual_seed(0)
    plain = step()
    torch.manual_seed(0)
    with remat.record(tmp_path / "step.rec") as recording:
        recorded = step()
        recording.mark("step 1")
    assert torch.equal(plain, recorded)
    size = (tmp_path / "step.rec").stat().st_size
    step()
    assert (tmp_path / "step.rec").stat().st_size == size
    assert (tmp_path / "step.rec").read_bytes().startswith(b"REMATREC")
    recording.stop()


def test_regions_that_run_again_one_after_the_other_are_told_apart(tmp_path):
    x = torch.randn(4, 8, requires_grad=True)
    with remat.record(tmp_path / "step.rec"):
        for i in range(3):
            x = remat.checkpoint(region_name=f"block {i}")(nn.Sequential(nn.Linear(8, 8), nn.GELU()))(x)
        x.sum().backward()
    assert b"block 2" in (tmp_path / "step.rec").read_bytes()


def test_source_lines_are_of_the_program(tmp_path):
    path = tmp_path / "step.rec"
    with remat.record(path, source_lines=True):
        step()
    assert b"test_record.py:" in path.read_bytes()
    assert b"torch/nn/modules" not in path.read_bytes()
    with remat.record(path):
        step()
    assert b"test_record.py:" not in path.read_bytes()


@pytest.mark.skipif(TRACE is None, reason="remat-trace is not built")
def test_what_the_engine_calls_has_no_line_of_its_own(tmp_path):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 3 * x * x * gradient

    path = tmp_path / "step.rec"
    x = torch.ones(3, requires_grad=True)
    for replay in ("function", "tape"):
        fn = remat.checkpoint(replay=replay)(lambda x: x.sin().exp())
        fn(x).sum().backward()
        with remat.record(path, source_lines=True):
            Cube.apply(fn(x)).sum().backward()
        listed = subprocess.run([TRACE, path, "--ops"], capture_output=True, text=True, check=True).stdout.splitlines()
        here = [line for line in listed if "test_record.py:" in line]
        assert not [line for line in listed if " forward " in line and line not in here]
        assert all("Cube.backward" in line for line in here if " backward " in line)
        assert sum("Cube.backward" in line for line in here) >= 3
        replayed = [line for line in here if " replay " in line]
        assert len(replayed) == (2 if replay == "function" else 0)
        assert all("<lambda>" in line for line in replayed)


def ops_of(path, name):
    listed = subprocess.run([TRACE, path, "--ops", "--op", name], capture_output=True, text=True, check=True).stdout
    return listed.splitlines()[1:]


@pytest.mark.skipif(TRACE is None, reason="remat-trace is not built")
def test_finalizers_that_run_ops_while_an_op_is_looked_at(tmp_path):
    class Dies:
        def __init__(self):
            self.me = self  # a cycle for the garbage collector

        def __del__(self):
            torch.ones(2).abs().neg()

    path = tmp_path / "step.rec"
    before = gc.get_threshold()
    with remat.record(path, source_lines=True):
        gc.set_threshold(1)
        try:
            for _ in range(300):
                Dies()
                torch.ones(2).sin()
        finally:
            gc.set_threshold(*before)
    assert len(ops_of(path, "aten::sin")) == 300
    assert len(ops_of(path, "aten::abs")) > 100


@pytest.mark.skipif(TRACE is None, reason="remat-trace is not built")
def test_a_source_file_whose_name_is_no_utf_8(tmp_path):
    names = {"torch": torch}
    exec(compile("def f(x):\n    return x.sin()", "caf\udce9.py", "exec"), names)
    with remat.record(tmp_path / "step.rec", source_lines=True):
        names["f"](torch.ones(2))
        torch.ones(2).tanh()
    assert "caf\\udce9.py:2 f" in ops_of(tmp_path / "step.rec", "aten::sin")[0]
    assert "test_record.py:" in ops_of(tmp_path / "step.rec", "aten::tanh")[0]


def test_a_recorder_that_is_refused_leaves_the_file(tmp_path):
    path = tmp_path / "step.rec"
    with remat.record(path) as recording:
        step()
        with pytest.raises(RuntimeError, match=f"Stop the first, which writes {path}"):
            remat.record(path)
    recording.report(str(tmp_path / "step.html"))
    assert "block" in (tmp_path / "step.html").read_text()


def test_it_is_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with remat.record("step.rec") as recording:
        step()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    recording.report("step.html")
    assert (tmp_path / "other" / "step.html").exists()


def test_the_error_of_the_program_goes_before_that_of_the_disk():
    with pytest.warns(UserWarning, match="No space left on device"):
        with pytest.raises(KeyboardInterrupt):
            with remat.record("/dev/full"):
                step()
                raise KeyboardInterrupt


def test_a_child_leaves_the_recording_to_its_parent(tmp_path):
    with remat.record(tmp_path / "step.rec") as recording:
        child = os.fork()
        if child == 0:
            torch.ones(2, device="cpu").sin()  # CUDA does not work in a child
            recording.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        step()
    recording.report(str(tmp_path / "step.html"))
    assert "block" in (tmp_path / "step.html").read_text()


def test_a_page_by_the_recorder_the_module_and_a_notebook(tmp_path, monkeypatch, capsys):
    with remat.record(tmp_path / "step.rec") as recording:
        step()
    recording.report(str(tmp_path / "step.html"))
    assert "block" in (tmp_path / "step.html").read_text()
    assert recording.path == str(tmp_path / "step.rec")
    shown = recording._repr_html_()
    assert shown.startswith('<iframe srcdoc="') and shown.count('"') == 6
    assert report.main([recording.path, recording.path, "-o", str(tmp_path / "both.html")]) == 0
    assert (tmp_path / "both.html").stat().st_size > (tmp_path / "step.html").stat().st_size
    assert report.main([str(tmp_path / "no.rec"), "-o", str(tmp_path / "no.html")]) == 3
    assert "no.rec: expected a file that can be read" in capsys.readouterr().err
    with pytest.raises(ValueError, match="/nowhere/x.html: expected a path that can be written"):
        recording.report("/nowhere/x.html")
    (tmp_path / "cut.rec").write_bytes((tmp_path / "step.rec").read_bytes()[:-1])
    report.write_report(tmp_path / "cut.rec", page=tmp_path / "cut.html")
    assert "cut.rec: at byte" in capsys.readouterr().err
    ran = subprocess.run([sys.executable, "-m", "remat_meta.report", "--help"], capture_output=True, text=True, check=True)
    assert "Recordings as a page for browsers" in ran.stdout and not ran.stderr


def test_a_debugged_process_says_where_its_replay_differs(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "import remat_meta as remat\n"
        "calls = []\n"
        "def block(x):\n"
        "    calls.append(x)\n"
        "    x = x.sin()\n"
        "    return (x.exp() if len(calls) == 1 else x.tanh()).cos()\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "remat.checkpoint(region_name='block')(block)(x).sum().backward()\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "REMAT_DEBUG": "1"}, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert "REMAT_DEBUG=1 in the environment writes the ops of both" in ran.stderr
    (difference,) = tmp_path.glob("remat-*.diff")
    text = difference.read_text()
    assert "op 1 differs" in text
    assert "forward  aten::exp(" in text and "replay   aten::tanh(" in text
    assert text.count("train.py:7 block") == 2
    assert f"{difference.name} says where it differs from its forward" in ran.stderr


def test_without_a_path_it_is_in_the_present_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with remat.record():
        step()
    assert [path.name for path in tmp_path.iterdir()] == [f"remat-{os.getpid()}.rec"]


def test_one_at_a_time_and_none_under_a_profiler(tmp_path):
    with remat.record(tmp_path / "a.rec"):
        with pytest.raises(RuntimeError, match="expected no other Recorder in the process"):
            remat.record(tmp_path / "b.rec")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True):
        with pytest.raises(RuntimeError, match="expected no torch profiler"):
            remat.record(tmp_path / "c.rec")
    assert not (tmp_path / "b.rec").exists() and not (tmp_path / "c.rec").exists()
    with remat.record(tmp_path / "d.rec"):
        step()
        with pytest.raises(RuntimeError, match="got an open Recorder or MemoryMeter of remat"):
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True).start()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        step()
    assert len(profiler.events()) > 0
    with pytest.raises(ValueError, match="/nowhere/e.rec: expected a file that can be written"):
        remat.record("/nowhere/e.rec")


def test_an_exception_ends_the_recording(tmp_path):
    with pytest.raises(ZeroDivisionError), remat.record(tmp_path / "a.rec"):
        raise ZeroDivisionError
    with remat.record(tmp_path / "b.rec"):
        step()


def test_a_budget_is_measured_and_kept_while_it_is_recorded(tmp_path):
    def trained(records):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4)])
        remat.auto_checkpoint(model, "80%")
        x = torch.randn(32, 16)
        with remat.record(tmp_path / "a.rec") if records else contextlib.nullcontext():
            for _ in range(6):
                model.zero_grad()
                model(x).square().mean().backward()
        return model, [parameter.grad for parameter in model.parameters()]

    _, plain = trained(records=False)
    model, recorded = trained(records=True)
    assert all(map(torch.equal, plain, recorded))
    assert remat.memory_plan(model).feasible


CODE = """
import torch, remat_meta as remat
x = torch.randn(4, requires_grad=True)
remat.checkpoint(region_name="block")(lambda x: x.sin().exp())(x).sum().backward()
"""


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_variable_records_a_whole_process(tmp_path):
    run(CODE, REMAT_RECORD=str(tmp_path))
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for name in (b"aten::sin", b"aten::exp", b"SumBackward0", b"block"):
        assert name in content
    assert "nothing is recorded" in run(CODE, REMAT_RECORD="/nowhere")


def test_a_long_recording_takes_no_more_memory(tmp_path):
    code = f"""
import torch, remat_meta as remat
x = torch.randn(16, 16, requires_grad=True)
def run(steps):
    for _ in range(steps):
        remat.checkpoint(region_name="block")(lambda x: x.sin().exp().tanh())(x).sum().backward()
        x.grad = None
def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
with remat.record("{tmp_path}/long.rec", source_lines=True):
    run(1000)
    before = resident_bytes()
    run({STEPS})
    grown = resident_bytes() - before
assert grown < 1 << 20, f"{{grown}} bytes more"
"""
    run(code)
    assert (tmp_path / "long.rec").stat().st_size > STEPS * 500  # the steps were recorded


def test_fake_and_lazy_and_nested_tensors_are_recorded_without_data(tmp_path):
    with remat.record(tmp_path / "a.rec"):
        with torch._subclasses.FakeTensorMode():
            x = torch.randn(4, 4, requires_grad=True)
            (x @ x).sin().sum().backward()
        torch.randn(3, 3).to_sparse().sum()
        nested = torch.nested.nested_tensor([torch.randn(n, 8) for n in (3, 5)], layout=torch.jagged, requires_grad=True)
        nested.sin().to_padded_tensor(0.0).sum().backward()
        torch.vmap(torch.sin)(torch.randn(3, 3))
        torch.empty(4, device="meta").sin()
    content = (tmp_path / "a.rec").read_bytes()
    assert b"aten::sin" in content and b"meta" in content
