# SPDX-License-Identifier: BSD-3-Clause

"""Makes a failing program smaller, as long as it fails in the same way."""

from .ops import OPS

FIRST_INPUT = 0  # x0: visible everywhere


def shrink(program, fails, limit=3000):
    """Returns the smallest program found for which fails(program) is true, in at most `limit` tries."""
    tries = 0
    changed = True
    while changed:
        changed = False
        for edit in list(_edits(program)):
            smaller = program.copy()
            if not edit(smaller):
                continue
            tries += 1
            if tries > limit:
                return program
            if fails(smaller):
                program, changed = smaller, True
    return program


def _blocks(program):
    return list(program.blocks())


def _edits(program):
    """Yields functions that change a copy of a program; each returns false if the place no longer exists."""
    for number, block in reversed(list(enumerate(_blocks(program)))):
        for i in reversed(range(len(block.steps))):
            for edit in (_remove, _inline, _simplify):
                yield lambda p, n=number, i=i, edit=edit: _at(p, n, i, edit)
        for i in range(len(block.results)):
            yield lambda p, n=number, i=i: _drop_result(p, n, i)
    yield _plain_backward
    for field in ("forward_mode", "backward_mode"):
        yield lambda p, field=field: _set_plain(p, field, "")


def _at(program, number, i, edit):
    blocks = _blocks(program)
    if number >= len(blocks) or i >= len(blocks[number].steps):
        return False
    return edit(program, blocks[number], i)


def _rename(program, names):
    """Replaces values by others in the whole program; `names`: {old number: new number}."""

    def new(number):
        while number in names:
            number = names[number]
        return number

    for block in _blocks(program):
        block.results[:] = [new(n) for n in block.results]
        for step in block.steps:
            step.arguments[:] = [new(n) for n in step.arguments]
            if "used" in step.options:
                step.options["used"] = [new(n) for n in step.options["used"]]


def _remove(program, block, i):
    step = block.steps.pop(i)
    stand_in = step.arguments[0] if step.arguments else FIRST_INPUT
    made = [n for inner in _inner_blocks(step) for s in inner.steps for n in s.results]
    _rename(program, dict.fromkeys([*step.results, *made], stand_in))
    return True


def _inner_blocks(step):
    waiting = [step.body] if step.body and step.kind == "with" else []
    while waiting:
        block = waiting.pop()
        yield block
        waiting += [s.body for s in block.steps if s.body and s.kind == "with"]


def _inline(program, block, i):
    """Replaces the call by its body."""
    step = block.steps[i]
    if step.body is None or step.options.get("twice"):
        return False
    if step.kind == "with":
        block.steps[i : i + 1] = [s for s in step.body.steps if s.kind != "throw"]
        return True
    block.steps[i : i + 1] = [s for s in step.body.steps if s.kind != "throw"]
    names = dict(zip(step.body.parameters, step.arguments, strict=True))
    names |= dict(zip(step.results, step.body.results, strict=True))
    _rename(program, names)
    return True


def _simplify(program, block, i):
    step = block.steps[i]
    for option, plain in (("form", "tuple"), ("passing", "positional"), ("arguments", None)):
        if option in step.options and _set(step.options, option, plain):
            return True
    for option in ("of_a", "of_b"):
        if step.options.get(option):
            step.options[option] = ""
            return True
    if step.options.get("twice"):
        step.options["twice"] = False
        half = len(step.results) // 2
        _rename(program, dict(zip(step.results[half:], step.results[:half], strict=True)))
        del step.results[half:]
        return True
    if step.options.get("call", '"SAVE"') != '"SAVE"':
        step.options["call"] = '"SAVE"'
        return True
    if step.options.get("engine") == "torch_checkpoint":
        step.options |= {"engine": "checkpoint", "arguments": {}}
        return True
    if step.kind == "free" and len(step.arguments) > 1:
        step.arguments.pop()
        return True
    if step.body is None and step.kind in OPS and step.kind not in ("sin", "scale"):
        return _replace_op(step)
    return False


def _set(options, option, plain):
    if option == "arguments":
        if not options[option]:
            return False
        options[option].popitem()
        return True
    if options[option] in (plain, "single"):
        return False
    options[option] = plain
    return True


def _replace_op(step):
    if len(step.results) != 1 or OPS[step.kind].view:
        return False
    step.kind, step.arguments[1:] = "sin", []
    return True


def _drop_result(program, number, i):
    """Drops a result of the program, or an unused result of a function."""
    blocks = _blocks(program)
    if number >= len(blocks) or i >= len(blocks[number].results) or len(blocks[number].results) < 2:
        return False
    block = blocks[number]
    owner = next((s for b in blocks for s in b.steps if s.body is block), None)
    if owner is not None:
        if owner.options.get("twice") or owner.options["form"] == "single":
            return False
        gone = owner.results.pop(i)
        _rename(program, {gone: owner.results[0]})
    del block.results[i]
    return True


def _plain_backward(program):
    return _set_plain(program, "use", "backward")


def _set_plain(program, field, plain):
    if getattr(program, field) == plain:
        return False
    setattr(program, field, plain)
    return True
