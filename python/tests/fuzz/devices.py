# SPDX-License-Identifier: BSD-3-Clause

"""CUDA tensors in random programs, if REMAT_FUZZ_DEVICE or REMAT_TEST_DEVICE is "cuda": where values are, and code that brings
them together."""

import ctypes
import os
import random
import re
import threading

import torch

ON_CUDA = os.environ.get("REMAT_FUZZ_DEVICE", os.environ.get("REMAT_TEST_DEVICE", "cpu")) == "cuda"
MAIN = torch.device("cuda:0" if ON_CUDA else "cpu")
ORDERS = (b"eager", b"lazy", b"side-lazy", b"side-eager", b"random")
FACTORIES = "zeros ones empty arange tensor full rand randperm eye hann_window".split()
# Tensors that functions capture, and (ELSEWHERE) tensors that some programs have on the host or on a second device.
CLOSED_OVER = re.compile(r"\b([wp][01])\b|\b(given\([^)]*\))")
ELSEWHERE = ("x1", "w1", "b1", "k0")


def second():
    return torch.device("cuda", torch.cuda.device_count() - 1)


def place_of(name, seed):
    """Returns the device of a tensor of the program's initial state."""
    if not ON_CUDA or name == "h0":
        return torch.device("cpu")
    choose = random.Random(f"devices {seed}")
    where = choose.choice(("one", "one", "host", "two"))
    if where == "one" or name not in ELSEWHERE:
        return MAIN
    return torch.device("cpu") if where == "host" else second()


def may_race(source):
    """True if gradients may come from more than one of autograd's threads, so that the order in which they are added up is not
    the same in each run."""
    return bool(re.search(r"beside\(|\.cpu\(\)|second\(\)|\bh0\b", source))


def beside(tensor, other):
    """Returns `tensor` on the device of `other`."""
    return tensor if tensor.device == other.device else tensor.to(other.device)


def at_home(template, writes_buffer):
    """Returns the op's lines for operands on several devices. The op runs on the device of {a}, of the buffer that it writes, or
    of `bn`."""
    home = "{c}" if writes_buffer else "bn.weight" if re.search(r"\bbn\b", template) else "{a}"
    if home != "{c}" and not re.search(r"\{[abc]\}", template):
        return template
    text = _with_devices(template, f"device={home}.device")
    text = CLOSED_OVER.sub(lambda found: f"beside({found.group()}, {home})", text)
    for name in ("{a}", "{b}", "{c}"):
        if name != home:
            text = text.replace(name, f"beside({name}, {home})")
    return text.replace("generator=gen, device={a}.device)", "generator=gen, device=gen.device).to({a}.device)")


def _with_devices(text, device):
    """Returns the text with the argument `device` added to calls of factories without one."""
    found = re.search(rf"torch\.({'|'.join(FACTORIES)})\(", text)
    if not found:
        return text
    depth, end = 1, found.end()
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    call = text[found.start() : end - 1]
    more = "" if "device=" in call else f", {device}"
    return text[: found.start()] + call + more + ")" + _with_devices(text[end:], device)


# Functions that programs call.

STREAMS = {}
LATE = threading.local()


def other_stream(device):
    if device not in STREAMS:
        STREAMS[device] = torch.cuda.Stream(device)
    return STREAMS[device]


def inner_of(tensor):
    """Returns the plain tensor that holds the memory of a wrapper subclass."""
    while "inner" in getattr(tensor, "__dict__", ()):
        tensor = tensor.inner
    return tensor


def record(tensor, stream):
    """Records that the stream uses the tensor's memory, which may be freed before the stream's work is done."""
    part = inner_of(tensor)
    if part.device != stream.device or part.is_nested:
        return
    # LibTorch's fallback for tensors with the negative bit expects a result of record_stream(), which has none.
    (torch._neg_view(part) if part.is_neg() else part).record_stream(stream)


def used_here(*tensors):
    for tensor in tensors:
        if tensor.is_cuda:
            record(tensor, torch.cuda.current_stream(tensor.device))


class side:
    """Makes another stream of a device current, after making it wait for the previous stream. At the end, or with `late` in
    arrived(), the previous stream waits for the other one."""

    def __init__(self, number, *used, late=False):
        self.device = second() if number else MAIN
        self.used, self.late = used, late

    def __enter__(self):
        self.before, self.stream = torch.cuda.current_stream(self.device), other_stream(self.device)
        self.stream.wait_stream(self.before)
        for tensor in self.used:
            record(tensor, self.stream)
        _set_stream(self.stream)

    def __exit__(self, *error):
        _set_stream(self.before)
        if self.late:
            LATE.streams = [*getattr(LATE, "streams", ()), self.stream]
        else:
            self.before.wait_stream(self.stream)


def _set_stream(stream):
    """Sets the stream without changing the current device."""
    device = torch.cuda.current_device()
    torch.cuda.set_stream(stream)
    torch.cuda.set_device(device)


def arrived(*tensors):
    """Makes the current stream wait for the streams that side(late=True) left, which make these tensors."""
    for stream in getattr(LATE, "streams", ()):
        torch.cuda.current_stream(stream.device).wait_stream(stream)
    LATE.streams = []
    used_here(*tensors)


def _resolved(tensor):
    """Returns the tensor without conjugate and negative bits, which LibTorch's copy from a device to the host loses if the tensor
    is not contiguous."""
    return tensor.resolve_conj().resolve_neg()


class save_on_cpu(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, pin_memory=False):
        pair = torch.autograd.graph.save_on_cpu(pin_memory)
        super().__init__(lambda tensor: pair.pack_hook(_resolved(tensor)), pair.unpack_hook)


@torch.no_grad()
def pinned_copy(a, device):
    """Returns a copy through pinned memory, for which the host does not wait."""
    a = _resolved(a)
    if a.is_cpu:
        return a.detach().contiguous().pin_memory().to(device, non_blocking=True)
    if device.type == "cpu":
        return a.detach().cpu()
    host = torch.empty(a.shape, dtype=a.dtype, pin_memory=True)
    host.copy_(a.detach(), non_blocking=True)
    if a.device != device:
        torch.cuda.current_stream(device).wait_stream(torch.cuda.current_stream(a.device))
    return host.to(device, non_blocking=True)


# Functions that do nothing unless CUDA is the stand-in (cuda_stand_in_* in this process).


def _control(name):
    return getattr(ctypes.CDLL(None), f"cuda_stand_in_{name}", None)


def set_order(seed):
    """Sets the order in which the work of streams runs."""
    set_it = _control("set_order") if ON_CUDA else None
    if set_it:
        set_it(random.Random(f"order {seed}").choice(ORDERS), ctypes.c_uint(seed % 2**32))


def set_eager():
    set_it = _control("set_order") if ON_CUDA else None
    if set_it:
        set_it(b"eager", ctypes.c_uint(0))


def synchronize():
    if ON_CUDA:
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


def faults():
    """Describes the faults that the stand-in has found since the last call."""
    if not ON_CUDA:
        return ""
    synchronize()
    garbage, wrong, reset = _control("garbage"), _control("faults"), _control("reset")
    if not (garbage and wrong and reset):
        return ""
    garbage.restype = wrong.restype = ctypes.c_uint64
    found = f"{garbage(1)} launches that nobody has computed" if garbage(0) else ""
    found += f"{wrong()} faults" if wrong() else ""
    reset()
    return found


def forget_memory():
    """Makes addresses independent of earlier programs."""
    if ON_CUDA:
        torch.cuda.empty_cache()


def runs_alone(seed):
    """Whether the thread that calls backward does all, without autograd's own threads."""
    return ON_CUDA and random.Random(f"threads {seed}").random() < 0.4


def one_thread():
    return torch.autograd.set_multithreading_enabled(False)


def threads_of(seed):
    """Lets autograd use its own threads, or none: then the thread that calls backward runs all nodes."""
    return torch.autograd.set_multithreading_enabled(not runs_alone(seed))


AHEAD = 20_000  # more nodes than a program makes


def count_ahead():
    """Makes autograd's thread of each device number its nodes from above all numbers of this thread's nodes.

    Autograd adds gradients in the order of these sequence numbers, and each thread counts on its own."""
    # Twice, since remat subtracts the count of numbers that replays have used from the numbers of later nodes.
    least = 2 * _number_of_a_node() + AHEAD
    for device in range(torch.cuda.device_count()):
        value = torch.ones((), device=torch.device("cuda", device), requires_grad=True) * 1
        value.register_hook(lambda grad: _count_to(least))
        value.backward()


def _count_to(least):
    while _number_of_a_node() < least:
        pass


def _number_of_a_node():
    with torch.enable_grad():
        return torch.ones((), requires_grad=True).view(()).grad_fn._sequence_nr()


def random_states():
    return [torch.cuda.get_rng_state(device) for device in range(torch.cuda.device_count())] if ON_CUDA else []
