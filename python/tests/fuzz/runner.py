# SPDX-License-Identifier: BSD-3-Clause

"""Runs a program plainly and with remat, and compares."""

import dataclasses
import re

import torch
from same import bits

from . import devices, prelude
from .kinds import MODES, Computing, Flat, Opaque, Wrapper, of_host, plain_part, unwrap
from .program import STATE
from .refusals import reason_of

NOT_COMPARED = 'determinism_check="none"'
KEEPS = "SAVE|OFFLOAD|policy"
STEPS_AFTER = {"two_steps": 1, "five_steps": 4}  # only the first replay of a tape is compared with its forward
GLOBALS = {**vars(prelude), "F": torch.nn.functional}


@dataclasses.dataclass
class Outcome:
    values: list  # (name, tensor or None)
    error: Exception | None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """kind: "same", "raises" (plain code too), "refused" (by a documented rule), "noticed" (a function does something else in the
    replay: remat raises, or is told not to compare), or a failure: "differs", "unexpected error", "no error". On CUDA also
    "races": plain code adds gradients in an order that depends on autograd's threads: on their timing or their node numbers."""

    kind: str
    text: str = ""

    @property
    def failed(self):
        return self.kind not in ("same", "raises", "refused", "noticed", "races")

    def is_like(self, other):
        """True for the same fault, whatever the numbers in the message."""
        return self.kind == other.kind and _words(self.text) == _words(other.text)


def _words(text):
    return re.sub(r"'[^']*'|\d+|\[[^]]*\]", "", text)[:70]


def wrapped(name):
    return (Flat if name[1] == "0" else Opaque)(torch.randn(4, 4))


MAKERS = {
    "x": lambda name: torch.randn(4, 4),
    "w": lambda name: torch.randn(4, 4),
    "b": lambda name: torch.randn(4, 4),
    "c": lambda name: torch.randn(4, 4, dtype=torch.complex64),
    "k": lambda name: torch.randn(6, 4, 4),
    "t": wrapped,
    "p": wrapped,
    "q": lambda name: Computing(torch.randn(4, 4)),
    "h": lambda name: of_host(torch.randn(4, 4)),
}


def is_freed(tensor):
    return plain_part(tensor).untyped_storage().nbytes() == 0


class State:
    """Initial state of a program; a seed always gives the same."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.tensors = {name: self.made(name, seed) for name in STATE}
        for name in ("x0", "x1", "w0", "w1", "p0", "p1"):
            self.tensors[name].requires_grad_()
        self.norm = torch.nn.BatchNorm1d(4).to(devices.MAIN)
        self.generator = torch.Generator(devices.MAIN).manual_seed(seed)

    def made(self, name, seed):
        tensor = MAKERS[name[0]](name)
        device = devices.place_of(name, seed)
        if device.type == "cpu":
            return tensor
        return type(tensor)(tensor.inner.to(device)) if isinstance(tensor, Wrapper) else tensor.to(device)

    def arguments(self):
        return (*self.tensors.values(), self.norm, self.generator)

    def leaves(self):
        return [t for t in self.tensors.values() if t.requires_grad and t.is_leaf] + list(
            self.norm.parameters()
        )

    def after(self):
        """Returns all tensors that a program may have written."""
        named = {**self.tensors, **self.norm.state_dict(keep_vars=True)}
        values = [(f"{name} after", tensor) for name, tensor in named.items() if not is_freed(tensor)]
        values += [(f"gradient of {name}", t.grad) for name, t in named.items() if t.is_leaf]
        values.append(("random stream after", torch.get_rng_state()))
        values += [("random stream of a device after", state) for state in devices.random_states()]
        values.append(("generator after", self.generator.get_state()))
        return values


def loss_of(outputs):
    return sum(((unwrap(t).float() ** 2).sum().to(devices.MAIN) for t in outputs), torch.zeros((), device=devices.MAIN))


def write_data(tensors):
    """Writes the tensors without a new version."""
    for tensor in tensors:
        if type(tensor) is torch.Tensor and not is_freed(tensor):
            tensor.data.mul_(0.9)


def exchange_data(tensors):
    """Gives the tensors new memory with other values."""
    for tensor in tensors:
        if type(tensor) is torch.Tensor and not is_freed(tensor):
            tensor.data = tensor.data * 0.9


def compiled(source):
    names = {}
    exec(compile(source, "<program>", "exec"), GLOBALS, names)
    return names["program"]


class Runner:
    """One run of a program, with its modes."""

    def __init__(self, fn, how, api, seed):
        self.fn, self.api, self.state = fn, api, State(seed)
        self.use, self.forward_mode, self.backward_mode = how.split("|")

    def outcome(self):
        values = []
        try:
            outputs, loss = self.forward()
            values += [("output", plain_part(t).detach().clone()) for t in outputs]
            values += [("requires_grad", torch.tensor(t.requires_grad)) for t in outputs]
            if loss.requires_grad:
                values += self.use_graph(loss, outputs)
            self.api.bring_back()
        except Exception as error:
            return Outcome(values, error)
        return Outcome(values + self.state.after(), None)

    def forward(self):
        self.api.bring_back()
        with MODES[self.forward_mode]():
            outputs = self.fn(self.api, *self.state.arguments())
            return outputs, loss_of(outputs)

    def backward(self, loss, **options):
        self.api.bring_back()
        with MODES[self.backward_mode]():
            loss.backward(**options)

    def grad(self, loss, leaves, **options):
        self.api.bring_back()
        with MODES[self.backward_mode]():
            return torch.autograd.grad(loss, leaves, allow_unused=True, **options)

    def use_graph(self, loss, outputs):
        leaves = self.state.leaves()
        if self.use == "in_flight":
            self.backward(self.forward()[1])
        if self.use == "retain_graph":
            self.backward(loss, retain_graph=True)
        if self.use == "partial":
            grads = [self.grad(loss, leaf, retain_graph=True)[0] for leaf in (leaves[0], leaves[-1])]
            return [("partial gradient", grad) for grad in grads]
        if self.use == "write_between":
            return [("a write between two backwards is lost", self.is_lost(loss, leaves))]
        if self.use == "write_data":
            write_data(outputs)
        if self.use == "exchange_data":
            exchange_data([*outputs, *self.state.tensors.values()])
        if self.use == "double":
            grads = self.grad(loss, leaves, create_graph=True)
            loss = loss * 0 + sum((unwrap(grad) ** 2).sum().to(devices.MAIN) for grad in grads if grad is not None)
        self.backward(loss)
        for _ in range(STEPS_AFTER.get(self.use, 0)):
            self.step(leaves)
        return []

    def is_lost(self, loss, leaves):
        """True if the graph of a backward computes with tensors that were written after it, and does not raise."""
        scale = torch.ones((), device=devices.MAIN, requires_grad=True)
        grads = self.grad(loss, leaves, grad_outputs=scale, create_graph=True)
        grads = [grad for grad in grads if grad is not None and grad.requires_grad]
        if not grads:
            return torch.tensor(False)
        total = sum((unwrap(grad).sum().abs().to(devices.MAIN) for grad in grads), scale * 0)
        (before,) = self.grad(total, scale, retain_graph=True)
        try:
            with torch.no_grad():
                for tensor in self.state.tensors.values():
                    if not tensor.requires_grad and not is_freed(tensor):
                        tensor.mul_(1.5)
            (after,) = self.grad(total, scale)
        except Exception:
            return torch.tensor(False)
        return torch.tensor(not torch.equal(before, after) and not before.isnan().any())

    def step(self, leaves):
        with torch.no_grad():
            for leaf in leaves:
                leaf -= 0.01 * (leaf.grad if leaf.grad is not None else 0)
        # Fills memory that was freed.
        junk = [torch.full((4, n % 5), torch.nan, device=devices.MAIN) for n in range(20)]  # noqa: F841
        loss = self.forward()[1]
        if loss.requires_grad:
            self.backward(loss)


def first_difference(plain, got):
    if len(plain) != len(got):
        return f"{len(plain)} values, {len(got)} with remat"
    for (what, want), (_, have) in zip(plain, got, strict=True):
        if type(want) is not type(have) and None not in (want, have):
            return f"{what}: {type(have).__name__} instead of {type(want).__name__}"
        want, have = plain_part(want), plain_part(have)
        if (want is None) != (have is None):
            return f"{what}: {'none' if have is None else 'one'} with remat only"
        if want is None:
            continue
        want, have = want.cpu(), have.cpu()
        if want.dtype != have.dtype or want.shape != have.shape or not torch.equal(bits(want), bits(have)):
            return what
    return None


def check(program, seed, engine=prelude.Remat):
    return check_source(program.source(), seed, program.how, engine)


def run_plain(program, seed):
    Runner(compiled(program.source()), program.how, prelude.Plain(), seed).outcome()
    return Verdict("same")


def check_source(source, seed, how, engine=prelude.Remat):
    """Compares the program `source` with remat and without."""
    fn = compiled(source)
    devices.set_order(seed)
    plain = run_alone(fn, how, prelude.Plain(), seed)
    if found := devices.faults():
        return Verdict("plain faults", found)
    api = engine()
    got = run_alone(fn, how, api, seed)
    if found := devices.faults():
        return Verdict("faults", found)
    if plain.error is not None:
        # autograd counts writes of tensors without elements too
        expected = got.error is not None or "[0, 4]" in str(plain.error)
        expected |= "comm_debug()" in source and isinstance(plain.error, IndexError)  # a fault of comm_debug's tracker
        expected |= "doesn't support sizes" in str(plain.error)  # raised for a strided nested tensor that a hook has cloned
        return Verdict("raises" if expected else "no error", str(plain.error)[:200])
    changes = "api.other(" in source
    if changes and (got.error is not None or NOT_COMPARED in source):
        return Verdict("noticed")
    if got.error is not None:
        reason = reason_of(got.error, source, how)
        text = f"{type(got.error).__name__}: {got.error}"
        return Verdict("refused", reason) if reason else Verdict("unexpected error", text)
    difference = first_difference(plain.values, got.values)
    if difference and how.startswith("exchange_data") and NOT_COMPARED in source:
        return Verdict("noticed")  # limits.md, S17
    if not difference and api.packed_inside and not re.search(KEEPS, source):
        difference = "hooks inside a region get what it makes again"
    if difference and devices.ON_CUDA and (doubt := doubt_of(source, fn, how, seed, plain, got, engine)):
        return doubt
    return Verdict("differs", difference) if difference else Verdict("same")


def run_alone(fn, how, api, seed, threads=None):
    """Runs with its own memory, on devices without other work."""
    devices.forget_memory()
    with threads or devices.threads_of(seed):
        outcome = Runner(fn, how, api, seed).outcome()
        devices.synchronize()
    return outcome


def is_same_on_one_thread(fn, how, seed, engine):
    """True if plain code and remat agree on one thread. Runs that race over several steps hardly ever agree."""
    plain, got = (run_alone(fn, how, api, seed, devices.one_thread()) for api in (prelude.Plain(), engine()))
    return plain.error is None and got.error is None and not first_difference(plain.values, got.values)


def hangs_on_numbers(fn, how, seed, plain, engine):
    """True if plain code gives other values once autograd's threads have made many nodes, and remat then gives these values."""
    devices.count_ahead()
    other, got = (run_alone(fn, how, api, seed) for api in (prelude.Plain(), engine()))
    if other.error is not None or got.error is not None:
        return False
    return bool(first_difference(plain.values, other.values)) and not first_difference(other.values, got.values)


def doubt_of(source, fn, how, seed, plain, got, engine):
    """Returns a verdict on plain code if plain code itself may give different values; otherwise None."""
    again = [run_alone(fn, how, prelude.Plain(), seed) for _ in range(4)]
    if devices.may_race(source):
        more = [got, *(run_alone(fn, how, engine(), seed) for _ in range(4))]
        both = [(p, g) for p in (plain, *again) for g in more if p.error is None and g.error is None]
        if any(not first_difference(p.values, g.values) for p, g in both):
            return Verdict("races")
    if any(run.error is not None or first_difference(plain.values, run.values) for run in again):
        races = not devices.runs_alone(seed) and is_same_on_one_thread(fn, how, seed, engine)
        return Verdict("races" if races else "plain differs in each run")
    if not devices.runs_alone(seed) and hangs_on_numbers(fn, how, seed, plain, engine):
        return Verdict("races")
    devices.set_eager()
    eager = run_alone(fn, how, prelude.Plain(), seed)
    devices.set_order(seed)
    if eager.error is not None or first_difference(plain.values, eager.values):
        return Verdict("plain differs in another order of streams")
    return None
