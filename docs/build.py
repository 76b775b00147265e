# SPDX-License-Identifier: BSD-3-Clause

"""docs/build.py OUT: the manual and the reference of both languages as a site in OUT/html, which needs no network.

Called by `cmake --build --preset release --target docs_site`, which knows where the package and Sphinx are.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import api_reference

_DOCS = Path(__file__).resolve().parent
_ROOT = _DOCS.parent
_LINK = re.compile(r"(?<=\]\()([^()\s:#]+)(?=[)#])")


def main(out: Path) -> int:
    if shutil.which("doxygen") is None or importlib.util.find_spec("sphinx") is None:
        print("[docs] expected doxygen, and Sphinx in build/docs_tools, got not both. Run ./setup.sh none.", file=sys.stderr)
        return 1
    source, doxygen, html = folders = [out / name for name in ("source", "doxygen", "html")]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for page in sorted(_DOCS.rglob("*.md")):
        _lay_out(page, source)
    for folder in ("pictures", "_static"):
        shutil.copytree(_DOCS / folder, source / folder)
    environment = dict(os.environ, OUT=str(doxygen), REMAT_DOXYGEN_XML=str(doxygen / "xml"))
    if status := subprocess.run(["doxygen", "docs/Doxyfile"], cwd=_ROOT, env=environment).returncode:
        return status
    headers = _tidy(doxygen / "xml")
    api_reference.write_pages(source / "reference", headers)
    _add_navigation(source / "index.md")
    # -E reads all pages anew, because Sphinx does not notice changes in the files that Doxygen writes.
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-d", out / "doctrees", "-c", _DOCS, source, html]
    return subprocess.run(sphinx, env=environment).returncode


def _lay_out(page: Path, source: Path) -> None:
    """Copies a page; files outside of docs/ that it links to become pages and downloads of the site."""
    copy = _place(page, source)
    text = page.read_text()

    def link(match: re.Match) -> str:
        target = (page.parent / match[1]).resolve()
        if not target.is_file():
            return match[1]  # Sphinx reports the broken link
        place = _place(target, source)
        if not place.exists() and not target.is_relative_to(_DOCS):
            place.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".md":
                _lay_out(target, source)
            else:
                shutil.copy(target, place)
        return os.path.relpath(place, copy.parent)

    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.touch()
    orphan = "" if page.is_relative_to(_DOCS) else "---\norphan: true\n---\n\n"
    copy.write_text(orphan + _LINK.sub(link, text))


def _place(file: Path, source: Path) -> Path:
    return source / (file.relative_to(_DOCS) if file.is_relative_to(_DOCS) else Path("sources") / file.relative_to(_ROOT))


def _tidy(xml: Path) -> list[str]:
    """Changes Doxygen's files to what Breathe shows well: public members alone, functions with the header that has
    them. Returns the headers that have anything to show."""
    headers = []
    files = {path: ElementTree.parse(path) for path in xml.glob("*.xml")}
    index = files[xml / "index.xml"]
    sections = {}
    for section in files[xml / "namespaceremat.xml"].iter("sectiondef"):
        for member in section.iter("memberdef"):
            member.find("name").text = f"remat::{member.findtext('name')}"
            sections.setdefault(member.find("location").get("file"), {}).setdefault(section.get("kind"), []).append(member)
    for tree in files.values():
        for compound in tree.iter("compounddef"):
            _drop(compound, "includes", "includedby", "innernamespace", "derivedcompoundref")
            for section in compound.findall("sectiondef"):
                if section.get("kind").startswith(("private", "friend", "define")):
                    compound.remove(section)
            if compound.get("kind") == "file":
                # Two headers are named profile.h, and Breathe looks for a file by its name in the index.
                name = compound.find("location").get("file")
                index.find(f"compound[@refid='{compound.get('id')}']/name").text = name
                for kind, members in sections.get(name, {}).items():
                    ElementTree.SubElement(compound, "sectiondef", kind=kind).extend(members)
                if compound.find("innerclass") is not None or compound.find("sectiondef") is not None:
                    headers.append(name)
        for member in tree.iter("memberdef"):
            if len(member.findtext("initializer") or "") > 60:
                _drop(member, "initializer")
    for path, tree in files.items():
        tree.write(path)
    return sorted(headers)


def _drop(element: ElementTree.Element, *tags: str) -> None:
    for child in [child for child in element if child.tag in tags]:
        element.remove(child)


def _add_navigation(index: Path) -> None:
    """Adds the sidebar, in the order of the landing page's links. Sphinx reports an error for a page without such a link."""
    row = "| | The API of [Python](reference/python.rst), [of C++](reference/cpp.rst) |"
    text = index.read_text().replace("| **Explanation**", f"{row}\n| **Explanation**")
    pages: dict[str, list[str]] = {}
    for page in re.findall(r"\]\(([\w/-]+)\.(?:md|rst)\)", text):
        pages.setdefault(page.split("/")[0], []).append(page)
    for folder, names in pages.items():
        caption = folder.capitalize().replace("-", " ")
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(names) + "\n```\n"
    index.write_text(text)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
