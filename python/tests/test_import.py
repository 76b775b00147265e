# SPDX-License-Identifier: BSD-3-Clause

"""Importing the package changes nothing in the process; the first use does.

Each test runs code in a child of a process that has imported torch, but not remat_meta: an import of torch takes seconds.
"""

import inspect
import json
import pickle
import pydoc
import re
import subprocess
import sys

import pytest

# Defines look(), a snapshot of the process, and told(), which prints what has changed since.
LOOK = """
import atexit, os, signal, sys, threading, warnings
import torch, torch.distributed.distributed_c10d, torch.utils.checkpoint

OPS = "aten::add.Tensor", "aten::mm", "aten::empty.memory_format", "aten::linear"
known = {}

def attributes():
    found = {}
    for module_name, module in known.items():
        for name, value in list(vars(module).items()):
            found[module_name, name] = value
            if isinstance(value, type) and str(value.__module__).startswith("torch"):
                found.update({(module_name, name, member): vars(value)[member] for member in list(vars(value))})
    return found

def look():
    modules = {name: module for name, module in sys.modules.items() if hasattr(module, "__dict__")}
    mains = ("__main__", "__mp_main__")
    known.update({name: module for name, module in modules.items() if name not in mains and not name.startswith("remat_meta")})
    return {
        "attributes": attributes(),
        "engine": torch.autograd.Variable._execution_engine,
        "finders": list(sys.meta_path), "path": list(sys.path), "path_hooks": list(sys.path_hooks),
        "modules": {name: sys.modules.get(name) for name in known},
        "filters": list(warnings.filters), "showwarning": warnings.showwarning,
        "environment": dict(os.environ), "folder": sorted(os.listdir(".")),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "interpreter": (sys.excepthook, sys.unraisablehook, sys.displayhook, sys.getprofile(), sys.gettrace()),
        "functions_at_exit": atexit._ncallbacks(),
        "threads": len(threading.enumerate()), "native_threads": len(os.listdir("/proc/self/task")),
        "names_of_ops": set(torch._C._dispatch_get_all_op_names()),
        "kernels": [torch._C._dispatch_dump(op) + torch._C._dispatch_dump_table(op) for op in OPS],
        "PrivateUse1": torch._C._get_privateuse1_backend_name(),
        "saved_tensor_hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "generator": torch.get_rng_state().tolist(),
    }

def told(before):
    watched = set(known)
    after = look()
    names = [name for name in before if name not in ("attributes", "modules") and before[name] != after[name]]
    names += [f"module {name}" for name in before["modules"] if before["modules"][name] is not after["modules"][name]]
    old, new = before["attributes"], after["attributes"]
    changed = {key for key in old.keys() | new.keys() if key[0] in watched and old.get(key) is not new.get(key)}
    print(*names, *(".".join(key) for key in changed))
"""

# Runs cases: (folder, code, environment). Each writes what it prints into the file "said" of its folder.
CASES = """
import contextlib, json, traceback
look()  # a snapshot itself loads what torch loads lazily
for folder, code, variables in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.environ.update(variables)
        try:
            with open("said", "w") as said, contextlib.redirect_stdout(said):
                try:
                    exec(code)
                except BaseException:
                    traceback.print_exc(file=said)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
"""

COMPILER = "import torch._dynamo, torch._inductor.output_code"
_all = {}


def case(name, code, first="", **variables):
    """Adds a case. `first`: what the process has imported in addition to torch."""
    _all[name] = first, code, variables
    return name


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The words that each case prints."""
    folders = {name: tmp_path_factory.mktemp("case") for name in _all}
    for first in {first for first, _, _ in _all.values()}:
        cases = [(str(folders[name]), code, variables) for name, (of, code, variables) in _all.items() if of == first]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"{first}\n{LOOK}\n{CASES}"],
            input=json.dumps(cases), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return {name: (folder / "said").read_text().split() for name, folder in folders.items()}


IMPORT = "before = look()\nimport remat_meta, remat_meta._engine, remat_meta._launch\n"
ALL = """
import importlib.util, pkgutil
for module in pkgutil.iter_modules(remat_meta.__path__):
    name = f"remat_meta.{module.name}"
    if module.name != "__main__" and importlib.util.find_spec(name):
        importlib.import_module(name)
"""
TOLD = "\ntold(before)\n"
REQUESTED = dict(REMAT_RECORD=".", REMAT_DEBUG="1", REMAT_POLICY="save_matmuls")
REGION = """
x = torch.ones(4, requires_grad=True)
remat_meta.checkpoint()(lambda x: x.sin().exp())(x).sum().backward()
"""
PATCHED = "torch.nn.utils.stateless._reparametrize_module"
TABLES = "engine", "kernels"

case("import", IMPORT + TOLD, **REQUESTED)
case("import after compiler", IMPORT + ALL + TOLD, COMPILER, **REQUESTED)
case("make a region", IMPORT + "remat_meta.checkpoint()" + TOLD, COMPILER)
case("run a region", IMPORT + REGION + TOLD)


@pytest.mark.parametrize("name", ["import", "import after compiler"])
def test_an_import_changes_nothing(name, said):
    assert said[name] == []


def test_the_first_use_tells_torch_and_the_first_region_installs_the_rest(said):
    made, ran = set(said["make a region"]), set(said["run a region"])
    assert made >= {PATCHED, "torch._ops.key_extractor", "torch._dynamo.trace_rules.check_verbose", "names_of_ops"}
    assert made.isdisjoint(TABLES)
    assert ran >= {PATCHED, "torch._ops.key_extractor", "finders", "names_of_ops", *TABLES}


USES = [
    "checkpoint()", "region(len, 'n', recompute=True)", "op(len, 'n', SAVE)", "native_op(len, 'n', SAVE)",
    "patch_torch_checkpoint()", "auto_checkpoint(len, '50%')", "torch_checkpoint(torch.sin, torch.ones(2))",
    "checkpoint_sequential(2)", "tiled(torch.sin, 0, 2)",
]  # fmt: skip
for _use in USES:
    case(_use, f"{IMPORT}SAVE = remat_meta.CheckpointPolicy.SAVE\nremat_meta.{_use}{TOLD}")


@pytest.mark.parametrize("use", USES)
def test_calls_that_are_a_first_use(use, said):
    assert PATCHED in said[use]


case(
    "record",
    f"import remat_meta\nprint(sorted(os.listdir('.')))\n{REGION}\nprint(sum(os.path.getsize(f) >= 0 for f in os.listdir('.')))",
    REMAT_RECORD=".",
)  # fmt: skip


def test_a_recording_begins_with_the_first_use(said):
    assert said["record"] == ["['said']", "2"]


FUNCTIONAL = """
import remat_meta

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x):
        return remat_meta.checkpoint()(lambda x: self.inner(x).exp())(x)

net = Net()
weights = {name: torch.ones_like(p).requires_grad_() for name, p in net.named_parameters()}
x = torch.ones(2, 3, requires_grad=True)
call = lambda weights: torch.func.functional_call(net, weights, (x,)).sum()
"""

case(
    "functional_call",
    FUNCTIONAL
    + """
for _ in range(2):
    try:
        call(weights).backward()
    except RuntimeError as error:
        print("refused" if "Call remat_meta.checkpoint() once before functional_call" in str(error) else error)
remat_meta.checkpoint()
call(weights).backward()
print(all(w.grad is not None for w in weights.values()), net.inner.weight.grad)
""",
)
case("functional_call in grad", FUNCTIONAL + "print(*sorted(torch.func.grad(call)(weights)))")


def test_a_first_region_inside_a_functional_call_is_refused_and_says_what_to_do(said):
    assert said["functional_call"] == ["refused", "refused", "True", "None"]


def test_regions_in_transforms_of_a_functional_call_are_plain_calls(said):
    assert said["functional_call in grad"] == ["inner.bias", "inner.weight"]


def compiled(call):
    return f"""
import remat_meta
graphs = []
def backend(graph, inputs):
    graphs.append(any("checkpoint" in str(node.target) for node in graph.graph.nodes))
    return graph
def fn(x):
    return {call}
x = torch.ones(3, requires_grad=True)
torch.compile(fn, backend=backend, fullgraph=True)(x).sum().backward()
print(graphs, torch.equal(x.grad, torch.ones(3).cos()))
"""


COMPILED = {
    "remat_meta.checkpoint()(torch.sin)(x)": "[True]",
    "remat_meta.torch_checkpoint(torch.sin, x)": "[True]",
    "x.cos() if remat_meta.is_recomputing() else x.sin()": "[False]",
}
for _call in COMPILED:
    case(_call, compiled(_call), COMPILER)
case(
    "compiled before",
    """
compiled = torch.compile(lambda x: x.sin().exp() * 2, backend="aot_eager")
x = torch.rand(3, requires_grad=True)
compiled(x).sum().backward()
y = x.detach().clone().requires_grad_()
import remat_meta
remat_meta.checkpoint()(compiled)(y).sum().backward()
print(torch.equal(x.grad, y.grad))
""",
    COMPILER,
)


@pytest.mark.parametrize("call", COMPILED)
def test_a_compiled_function_may_be_the_first_user(call, said):
    assert said[call] == [COMPILED[call], "True"]


def test_a_function_that_was_compiled_before_is_right_in_the_first_region(said):
    assert said["compiled before"] == ["True"]


case(
    "old alias",
    """
import remat_meta
w, x = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
alias = w.data
def fn(x):
    y = (x * w).sin()
    alias.mul_(2)
    return y
try:
    remat_meta.checkpoint()(fn)(x)
except RuntimeError as error:
    print("aten::mul_.Tensor: expected in-place ops that autograd notices" in str(error))
""",
)


def test_a_write_by_a_data_tensor_from_before_the_first_region_is_refused(said):
    assert said["old alias"] == ["True"]


case(
    "threads",
    """
import threading, remat_meta
gradients, barrier = [], threading.Barrier(4)
def work():
    x = torch.ones(4, requires_grad=True)
    barrier.wait()
    remat_meta.checkpoint()(torch.sin)(x).sum().backward()
    gradients.append(torch.equal(x.grad, torch.ones(4).cos()))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*gradients, sorted(f for f in os.listdir(".") if f.endswith(".rec")) == [f"remat-{os.getpid()}.rec"])
""",
    REMAT_RECORD=".", REMAT_DEBUG="1",
)  # fmt: skip


def test_threads_may_run_the_first_regions_together(said):
    assert said["threads"] == ["True"] * 5


def test_functions_of_the_package_look_like_functions():
    import remat_meta

    class Holder:
        make = remat_meta.region

    for function in (remat_meta.checkpoint, remat_meta.region, remat_meta.native_op, remat_meta.op, remat_meta.torch_checkpoint):
        assert pickle.loads(pickle.dumps(function)) is function
        assert inspect.isroutine(function)
        assert re.search(rf"{function.__name__}\(.*\w", pydoc.render_doc(function, renderer=pydoc.plaintext))
    assert Holder().make is remat_meta.region
