# SPDX-License-Identifier: BSD-3-Clause

"""The package: imports, versions, options, and the objects that its calls return."""

import copy
import inspect
import pathlib
import pickle
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from programs import ended_well

import remat_meta as remat
from remat_meta import _torch_version
from remat_meta._build_info import TORCH_VERSION

MINOR = _torch_version.minor(TORCH_VERSION)
NEWEST = _torch_version.compiled_versions(str(pathlib.Path(remat.__file__).parent))[-1]


def run_python(code, *args, **env):
    """Returns the output of `code` in a new Python."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1", **env}, timeout=120,
    )
    assert ended_well(done), done.stderr
    return done.stdout


@remat.checkpoint(region_name="decorated")
def decorated(x, *, scale: float = 2.0):
    """Sine, scaled."""
    return (x * scale).sin()


def test_another_minor_of_torch_is_refused_before_the_library_is_loaded(tmp_path):
    fake = tmp_path / "torch"
    fake.mkdir()
    (fake / "__init__.py").write_text("__version__ = '2.99.1+cu130'\n")
    text = run_python(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        try:
            import remat_meta
        except ImportError as error:
            print(error)
        print('remat_meta._C' in sys.modules)
        """,
        str(tmp_path),
    )
    assert re.search(rf"torch: expected .*{re.escape(NEWEST)}.*, for which this remat_meta was compiled", text)
    assert f"got 2.99.1+cu130 in {fake}" in text
    assert f"pip install 'torch=={NEWEST}.*'" in text
    assert text.endswith("False\n")


@pytest.mark.parametrize("found, has_source", [("2.9.1", False), ("2.10.0", True), ("2.15.2+cpu", True), ("2.16.0", False)])
def test_the_source_is_named_where_it_is_for_that_torch(found, has_source):
    with pytest.raises(ImportError, match=rf"expected 2\.99\.x, .* got {re.escape(found)} in there") as error:
        _torch_version.check_torch(found, "there", ["2.99"])
    assert ("install remat_meta from its source" in str(error.value)) == has_source


def test_a_python_without_torch_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"expected 2\.11\.x, got none.*pip install 'torch==2\.11\.\*'"):
        _torch_version.import_torch(["2.11"])
    with pytest.raises(ImportError, match=r"expected 2\.10, 2\.11 or 2\.12, got none.*pip install 'torch==2\.12\.\*'"):
        _torch_version.import_torch(["2.10", "2.11", "2.12"])


def test_folders_of_a_wheel_are_read_in_the_order_of_versions(tmp_path):
    for name in ("torch_2_9", "torch_2_15", "torch_2_10", "torch_x", "other"):
        (tmp_path / name).mkdir()
    assert _torch_version.compiled_versions(str(tmp_path)) == ["2.9", "2.10", "2.15"]


def test_another_python_is_told_which_there_are(tmp_path):
    for name in ("_C.cpython-399-x86_64-linux-gnu.so", "_C.cpython-398t-x86_64-linux-musl.so", "_build_info.py"):
        (tmp_path / name).write_text("")
    there = r"bindings \(cpython-398t-x86_64-linux-musl, cpython-399-x86_64-linux-gnu\)"
    with pytest.raises(ImportError, match=rf"{there}, got CPython 3\."):
        _torch_version.check_python(str(tmp_path))


def test_a_torch_with_old_strings_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "compiled_with_cxx11_abi", lambda: False)
    with pytest.raises(ImportError, match=r"expected the C\+\+11 ABI, got the one before it"):
        _torch_version.check_abi(torch)


def test_a_package_that_is_not_compiled_says_how_to(tmp_path):
    package = tmp_path / "remat_meta"
    package.mkdir()
    for source in pathlib.Path(remat.__file__).parent.glob("*.py"):
        (package / source.name).write_text(source.read_text())
    code = """
        try:
            import remat_meta
        except ImportError as error:
            print(error)
        """
    text = run_python(code, PYTHONPATH=str(tmp_path))
    assert text.startswith(f"[remat_meta] {package}/torch_*: expected the compiled part")
    assert "ninja -C build/release remat_python" in text


def test_a_wheel_gets_all_libraries_that_the_package_loads():
    loaded = subprocess.run(["ldd", remat._C.__file__], capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"lib(remat\w*)\.so", loaded))
    assert "remat" in targets
    rules = (pathlib.Path(__file__).parents[1] / "CMakeLists.txt").read_text()
    installed = " ".join(re.findall(r"install\(TARGETS ([\w ${}]+) LIBRARY", rules)).split()
    assert targets <= set(installed)


def test_import_registers_nothing():
    text = run_python(
        """
        import torch
        def state():
            dump = [torch._C._dispatch_dump(f"aten::{op}") for op in ("sin", "mm", "empty.memory_format")]
            return dump, torch._C._get_privateuse1_backend_name(), hasattr(torch, "remat_meta")
        before = state()
        import remat_meta
        print(state() == before)
        x = torch.ones(2, requires_grad=True)
        remat_meta.checkpoint()(torch.sin)(x)
        print(state() == before)
        """
    )
    assert text == "True\nFalse\n"


def test_the_module_prints_versions_and_tests_itself():
    done = subprocess.run(
        [sys.executable, "-m", "remat_meta"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    for line in (rf"remat_meta {remat.__version__}, compiled for torch {MINOR}", rf"torch +{MINOR}",
                 r"python +3", r"device +free", r"self-test +passed: results, gradients and buffers"):
        assert re.search(line, done.stdout), done.stdout


@pytest.mark.parametrize("call", [lambda fn: remat.checkpoint(fn), lambda fn: remat.checkpoint(fn, region_name="x")])
def test_a_function_in_the_first_call_shows_the_right_form(call):
    with pytest.raises(TypeError, match=r"checkpoint\(region_name=\"block\"\)\(fn\)\(x\)"):
        call(torch.sin)


@pytest.mark.parametrize("args", [(), (torch.sin, 1), (3,)])
def test_the_second_call_takes_one_function(args):
    with pytest.raises(TypeError, match=r"\[checkpoint\] fn: expected .*Write checkpoint\(options\)\(fn\)\(args"):
        remat.checkpoint()(*args)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"name": "x"}, TypeError, "name: expected one of the options region_name, preserve_rng_state"),
        ({"preserve_rng": True}, TypeError, r"got another name\. Did you mean preserve_rng_state\?"),
        ({"name": "x"}, TypeError, r"Did you mean region_name\?"),
        ({"label": "x"}, TypeError, r"generators; got another name\.$"),
        ({"region_name": 3}, TypeError, "region_name: expected a string, got int"),
        ({"preserve_rng_state": 1}, TypeError, "preserve_rng_state: expected True or False, got 1"),
        ({"early_stop": None}, TypeError, "early_stop: expected True or False, got None"),
        ({"intercept": "no"}, TypeError, "intercept: expected True or False, got 'no'"),
        ({"determinism_check": "bits"}, ValueError, 'determinism_check: expected "none", "metadata"'),
        ({"implicit_keep": "warn"}, ValueError, 'implicit_keep: expected "keep", "warn_once" or "error"'),
        ({"saved_tensors_hooks": (len,)}, ValueError, r"saved_tensors_hooks: expected \(pack, unpack\)"),
        ({"saved_tensors_hooks": (len, 3)}, TypeError, "saved_tensors_hooks, unpack: expected a function, got int"),
        ({"recompute_state_hooks": [1]}, TypeError, r"recompute_state_hooks\[0\]: expected an object with snapshot"),
        ({"recompute_state_hooks": 1}, TypeError, "recompute_state_hooks: expected a list or tuple, got int"),
        ({"generators": [torch]}, TypeError, r"generators\[0\]: expected a torch.Generator, got module"),
        ({"offload_store": "disk"}, TypeError, "offload_store: expected an OffloadStore"),
    ],
)
def test_wrong_options_are_named(options, error, text):
    with pytest.raises(error, match=text):
        remat.checkpoint(**options)


def test_metadata_of_the_function_is_kept():
    assert decorated.__name__ == "decorated" and decorated.__qualname__ == "decorated"
    assert decorated.__doc__ == "Sine, scaled." and decorated.__module__ == __name__
    assert list(inspect.signature(decorated).parameters) == ["x", "scale"]
    assert inspect.unwrap(decorated) is decorated.__wrapped__
    assert decorated.__annotations__ == {"scale": float}

    def fn(x):
        return x

    fn.tag = "own"
    wrapped = remat.checkpoint()(fn)
    assert wrapped.tag == "own"
    wrapped.tag = "other"
    assert (wrapped.tag, fn.tag) == ("other", "own")
    with pytest.raises(AttributeError, match="nothing"):
        wrapped.nothing


def test_a_decorated_method_is_bound():
    class Model:
        weight = 3.0

        @remat.checkpoint(region_name="method")
        def forward(self, x):
            return (x * self.weight).sin()

    x = torch.randn(2, requires_grad=True)
    Model().forward(x).sum().backward()
    assert torch.equal(x.grad, 3.0 * (x * 3.0).cos())


def test_pickle_and_deepcopy():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.deepcopy(decorated) is decorated
    builder = pickle.loads(pickle.dumps(remat.checkpoint(region_name="mine", early_stop=False)))
    assert repr(builder) == "<checkpoint with {'region_name': 'mine', 'early_stop': False}>"
    model = torch.nn.Linear(2, 2)
    wrapped = remat.checkpoint(region_name="mine")(model)
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert other.weight is not model.weight
        assert torch.equal(other.weight, model.weight)
        other(torch.ones(1, 2)).sum().backward()
        assert other.weight.grad is not None and model.weight.grad is None


TORCH_REMAT = {  # {function of torch_remat: its parameters}; None where signature() fails
    "clear_memory_snapshot_cache": "()",
    "collect_trace": "()",
    "current_saved_tensor_info": "()",
    "discover_autograd_roots": "()",
    "format_current_memory_report": "(annotate=None)",
    "format_oom_saved_tensors_report": "(annotate=None)",
    "format_saved_tensors_report": "(roots=None, annotate=None)",
    "is_placeholder": None,
    "is_recomputing": None,
    "memory_snapshot_annotate": "(snapshot=None)",
    "name_scope": None,
    "oom_observer": "(device, alloc, device_alloc, device_free)",
    "print_current_memory_report": "(file=None, annotate=None)",
    "print_saved_tensors_report": "(roots=None, file=None, annotate=None)",
    "recompute_needs_tensor": "(*tensors)",
    "region": '(fn, name, *, recompute, keep="innermost_region")',
    "save_for_backward": None,
    "saved_tensors_hooks": None,
    "trace_scope": "(function, name, *, metadata=None)",
}


def test_every_name_of_torch_remat_is_here_and_takes_the_same():
    for name in ("checkpoint", "RecomputeStateHook", "SavedTensorInfo", "SavedTensorKind", *TORCH_REMAT):
        assert name in remat.__all__ and callable(getattr(remat, name)), name
    for name, expected in TORCH_REMAT.items():
        if expected is None:
            continue
        signature = inspect.signature(getattr(remat, name))
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        assert str(inspect.Signature(bare)).replace("'", '"') == expected, name


def test_the_form_without_options_and_repr():
    assert repr(remat.checkpoint()) == "<checkpoint with {}>"
    assert repr(remat.checkpoint()(torch.sin)).startswith("<checkpoint with {} of <built-in")


class Block(torch.nn.Module):
    def forward(self, x):
        return x.sin()

    def snapshot(self):
        return None

    def restore(self, state):
        pass


SAVE = remat.CheckpointPolicy.SAVE
MISTAKES = {
    "the class of a module": (lambda: remat.checkpoint()(Block), r"got the class Block\. Pass an instance: Block\(\.\.\.\)"),
    "torch's form": (lambda: remat.checkpoint(Block(), torch.ones(2)), r"For torch's form call torch_checkpoint\(fn, x\)"),
    "a decorator without a call": (lambda: remat.checkpoint(lambda x: x), r"as a decorator @checkpoint\(\)"),
    "arguments in the first call": (
        lambda: remat.native_op(torch.sin, "call", SAVE, torch.ones(2)),
        r"\[native_op\] keep: expected a string .*, got torch\.Tensor.*the arguments go into the second call",
    ),
    "an option of torch": (lambda: remat.checkpoint(use_reentrant=False), r"It is torch's: leave it out\. torch_checkpoint"),
    "selective checkpointing": (lambda: remat.checkpoint(context_fn=len), r"It is torch's: give policy the ops to SAVE"),
    "five arguments": (lambda: remat.op(torch.sin, "call", SAVE, "all_regions", 3), r"\[op\] keep: expected a string"),
    "the class of a hook": (
        lambda: remat.checkpoint(recompute_state_hooks=[Block]),
        r"recompute_state_hooks\[0\]: .*got a class, of which an instance",
    ),
    "a word for a list": (lambda: remat.checkpoint(cuts=remat.Cuts("norm")), "expected a list or tuple, got str"),
    "an op for a preset": (lambda: remat.checkpoint(policy="aten::mm"), r'write a list, policy=\["aten::mm"\]'),
    "a share for bytes": (
        lambda: remat.auto_checkpoint(Block(), 0.5),
        r'got the float 0\.5\. Write memory_budget="50%", or of_peak=0\.5',
    ),
    "a float for bytes": (lambda: remat.auto_checkpoint(Block(), 8e9), r"got the float 8000000000\.0\. Write int\(8e\+09\)"),
    "a budget that is no number": (lambda: remat.auto_checkpoint(Block(), float("nan")), r"got the float nan\.$"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_typical_mistakes_are_told_what_to_write(name):
    call, text = MISTAKES[name]
    with pytest.raises((TypeError, ValueError), match=text):
        call()


def test_a_wrong_budget_of_a_script_is_an_error_of_the_command_line(tmp_path):
    (tmp_path / "script.py").write_text("")
    arguments = [sys.executable, "-m", "remat_meta", "--memory-budget", "50 percent", tmp_path / "script.py"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "error: memory_budget: expected bytes with a unit" in done.stderr
    assert "Traceback" not in done.stderr
