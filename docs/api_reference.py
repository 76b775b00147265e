# SPDX-License-Identifier: BSD-3-Clause

"""The pages of the reference of both languages, and how docstrings become markup."""

import ast
import functools
import re
import textwrap
from pathlib import Path

import remat_meta

_ROOT = Path(__file__).parents[1]
_MODULES = ("remat_meta", "remat_meta.testing", "remat_meta.report")


def write_pages(folder: Path, headers: list[str]) -> None:
    """Writes a page for each module of Python and each folder of headers, and a page of contents for each language."""
    for module in _MODULES:
        text = _heading(module) + f".. automodule:: {module}\n   :imported-members:\n"
        if module == "remat_meta":
            text += "\n" + _heading("Classes of what functions return", "-")
            text += "".join(f"\n.. autoclass:: {name}\n" for name in _classes_that_are_returned())
        (folder / f"python-{module}.rst").write_text(text)
    rooms = sorted({header.rpartition("/")[0] for header in headers})
    for room in rooms:
        text = ".. highlight:: cpp\n\n" + _heading(room)
        for header in headers:
            if header.startswith(f"{room}/"):
                text += f"\n{_heading(header, '-')}{_purpose(header)}\n\n.. doxygenfile:: {header}\n"
        (folder / f"cpp-{Path(room).name}.rst").write_text(text)
    text = "The modules of the package."
    _write_contents(folder / "python.rst", "API of Python", text, [f"python-{name}" for name in _MODULES])
    text = "The headers of each folder. ``#include <remat/remat.h>`` has what most programs need."
    _write_contents(folder / "cpp.rst", "API of C++", text, [f"cpp-{Path(room).name}" for room in rooms])


def typed_signature(app, what, name, obj, options, signature, returned):
    """Returns the types of a function of the bindings, which Sphinx cannot see but which the bindings' stub has."""
    return None if what in ("attribute", "property") else _signatures().get(name)


def markup(app, what, name, obj, options, lines):
    """Turns a docstring into markup. It has text with `code` and, in paragraphs of their own, lines "name: what it means"."""
    text = "\n".join(lines)
    # pybind11 and inspect.signature() read the signatures that stand before the text.
    text = re.sub(rf"\A(?:{re.escape(name.split('.')[-1])}\(.*\)(?: -> .*)?\n(?:--\n)?\n?)+", "", text)
    first, *others = re.split(r"\n\s*\n", text)
    if not first and what in ("attribute", "property"):
        first = f"`{_signatures().get(name, ('', ''))[1]}`"
    lines[:] = [*"\n\n".join([_escaped(first), *map(_paragraph, others)]).split("\n"), ""]


def public_name(app, environment, node, content):
    """Links a class in an annotation, which is named with its private module or as the stub does, to its public name."""
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"].split(".")[-1]
    if not re.fullmatch(r"(remat_meta\.(\w+\.)*)?\w+", node["reftarget"]):
        return None
    python = environment.domains["py"]
    for target in (f"remat_meta.{name}", f"remat_meta._C.{name}", node["reftarget"]):
        if target in python.objects:
            return python.resolve_xref(environment, node["refdoc"], app.builder, "obj", target, node, content)
    return None


_ITEM = re.compile(r"([a-z]\w*(?:, \w+)*(?:\([^)\n]*\))?): ")


def _paragraph(text: str) -> str:
    if text.startswith(("    ", ">>>")):
        return ".. code-block:: python\n\n" + textwrap.indent(textwrap.dedent(text), "   ")
    if not _ITEM.match(text):
        return _escaped(text)
    items = re.split(r"\n(?=[a-z][\w, ]*(?:\([^)\n]*\))?: )", text)
    return "\n".join("* " + _escaped(_ITEM.sub(r"`\1`: ", " ".join(item.split()), count=1)) for item in items if item)


def _escaped(text: str) -> str:
    parts = re.split(r"(`[^`]+`)", text)
    plain = (re.sub(r"([\\*|`]|(?<=\w)_(?!\w)|:(?=:$))", r"\\\1", part) for part in parts[::2])
    code = [*(f"`{part}`" for part in parts[1::2]), ""]
    return "".join(word for pair in zip(plain, code, strict=True) for word in pair)


@functools.cache
def _signatures() -> dict[str, tuple[str, str | None]]:
    found = {}
    for node in _stub().body:
        functions = [node] if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign):
                    found[f"{_public(node.name)}.{ast.unparse(part.target)}"] = "", ast.unparse(part.annotation)
            functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        for function in functions:
            arguments = function.args
            kept = [i for i, argument in enumerate(arguments.kwonlyargs) if not argument.arg.startswith("_")]
            arguments.kwonlyargs, arguments.kw_defaults = (
                [part[i] for i in kept] for part in (arguments.kwonlyargs, arguments.kw_defaults)
            )
            name = f"{_public(node.name)}" + ("" if function is node else f".{function.name}")
            static = function is node or any(ast.unparse(mark) == "staticmethod" for mark in function.decorator_list)
            if not static:
                del (arguments.posonlyargs or arguments.args)[0]
            returned = None if function.name == "__init__" else ast.unparse(function.returns)
            found[name.removesuffix(".__init__")] = f"({ast.unparse(arguments)})", returned
    names = {node.targets[0].id: ast.unparse(node.value) for node in _stub().body if isinstance(node, ast.Assign)}
    for name in [name for name, value in names.items() if value.startswith(("Callable", "Literal"))]:
        found = {key: tuple(part and re.sub(rf"\b{name}\b", names[name], part) for part in parts) for key, parts in found.items()}
    return found


def _public(name: str) -> str:
    return f"remat_meta.{name}" if name in remat_meta.__all__ else f"remat_meta._C.{name}"


def _classes_that_are_returned() -> list[str]:
    classes = [node.name for node in _stub().body if isinstance(node, ast.ClassDef)]
    names = [_public(name) for name in classes if not name.startswith("_") and name not in remat_meta.__all__]
    return [*names, *(f"remat_meta._trace.{name}" for name in ("RematTrace", "OpTrace", "ScopeTrace"))]


def _stub() -> ast.Module:
    return ast.parse((_ROOT / "python/remat_meta/_C.pyi").read_text())


def _purpose(header: str) -> str:
    """The comment that the header begins with."""
    match = re.search(r"\A// SPDX.*\n\n((?://.*\n)+)", (_ROOT / "include" / header).read_text())
    return _escaped(re.sub(r"^// ?", "", match[1], flags=re.MULTILINE).strip()) if match else ""


def _write_contents(page: Path, title: str, text: str, names: list[str]) -> None:
    page.write_text(f"{_heading(title)}{text}\n\n.. toctree::\n   :maxdepth: 2\n\n" + "".join(f"   {name}\n" for name in names))


def _heading(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"
