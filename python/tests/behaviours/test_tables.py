# SPDX-License-Identifier: BSD-3-Clause

"""Every numbered behaviour has tests. Python in the pages runs, and their links lead somewhere."""

import pathlib
import re

import numbered
import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
DOCS = ROOT / "docs"
TABLES = {"peer": numbered.PEER, "seed": numbered.SEED}
COUNT = {"peer": 144, "seed": 41}


def section(file, heading):
    text = file.read_text()
    assert text.count(f"\n{heading}\n") == 1
    return re.split(r"\n## ", text.split(f"\n{heading}\n")[1])[0]


@pytest.mark.parametrize("which", ["peer", "seed"])
def test_every_behaviour_has_a_test_and_every_test_a_behaviour(which):
    numbers = list(range(1, COUNT[which] + 1))
    assert list(TABLES[which]) == numbers
    texts = [file.read_text() for file in HERE.glob(f"test_{which}*.py")]
    tests = [int(digits) for text in texts for digits in re.findall(r"^def test_(\d+)_", text, re.MULTILINE)]
    assert sorted(set(tests)) == numbers


def test_cases_of_cpp_are_there():
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.cpp"))
    text = re.sub(r'"\s*\n\s*"', "", re.sub(r"\(\s+", "(", text))
    for behaviour in [*numbered.PEER.values(), *numbered.SEED.values(), *numbered.OURS]:
        assert behaviour.cases or behaviour.differs, behaviour
        for case in behaviour.cases:
            there = (ROOT / "tests" / case).is_file() if case.endswith(".cpp") else f'TEST_CASE("{case}"' in text
            assert there, (behaviour.claim, case)


def test_differences_name_behaviours_once():
    text = section(DOCS / "how-to/coming-from.md", "## Where remat differs from torch_remat")
    named = [name for row in re.findall(r"\| ([\d:., ]+) \|$", text, re.MULTILINE) for name in row.split(", ")]
    assert len(named) == len(set(named))
    seed = {int(name.removeprefix("0.1: ")) for name in named if name.startswith("0.1: ")}
    peer = {int(name) for name in named if not name.startswith("0.1: ")}
    assert len(peer) >= 20 and peer <= set(TABLES["peer"])
    assert len(seed) >= 5 and seed <= set(TABLES["seed"])


def pages():
    """Every page of the manual, and the tables beside their tests."""
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), HERE / "README.md", ROOT / "tests/mutants/README.md"]


def examples(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


PAGES = [page for page in pages() if examples(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_the_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the files that the examples write
    names = {}
    for block in examples(page):
        exec(compile(block, page, "exec"), names)
    if page.name == "README.md":
        assert names["x"].grad is not None


def test_many_pages_have_examples():
    assert len(PAGES) >= 8 and ROOT / "README.md" in PAGES


def without_code(page):
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_the_pages_lead_somewhere():
    count = 0
    for page in pages():
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), (str(page), link)
            assert not anchor or anchor in anchors(target), (str(page), link)
            count += 1
    assert count > 50
