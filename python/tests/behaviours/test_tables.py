# SPDX-License-Identifier: BSD-3-Clause

"""The tables of behaviours name tests that exist, and every behaviour. Python in the pages runs, and their links lead
somewhere."""

import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
DOCS = ROOT / "docs"
COUNT = {"peer": 144, "seed": 41}


def section(file, heading):
    text = file.read_text()
    assert text.count(f"\n{heading}\n") == 1
    return re.split(r"\n## ", text.split(f"\n{heading}\n")[1])[0]


def rows(which):
    """{number: last column}, every number once."""
    heading = {"peer": "### torch_remat 0.2.2 in Python", "seed": "### torch_remat 0.1 in Python"}[which]
    text = re.split(r"\n### ", section(HERE / "README.md", heading))[0]
    found = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    numbers = [int(number) for number, _ in found]
    assert numbers == list(range(1, COUNT[which] + 1))
    return dict(zip(numbers, (column for _, column in found), strict=True))


@pytest.mark.parametrize("which", ["peer", "seed"])
def test_every_behaviour_names_a_test_that_exists(which):
    for number, column in rows(which).items():
        match = re.fullmatch(r"(test_\w+\.py): (test_\w+)", column)
        assert match, (number, column)
        file, name = match.groups()
        assert re.search(rf"^def {name}\(", (HERE / file).read_text(), re.MULTILINE), (number, name)
        digits = f"{number:03d}" if which == "peer" else f"{number:02d}"
        assert name.startswith(f"test_{digits}_"), (number, name)


def test_every_test_with_a_number_is_of_a_behaviour():
    for file in HERE.glob("test_*.py"):
        which = "seed" if file.name.startswith("test_seed") else "peer"
        for digits in re.findall(r"^def test_(\d+)_", file.read_text(), re.MULTILINE):
            assert int(digits) in rows(which)


def test_differences_name_behaviours_once():
    text = section(DOCS / "how-to/coming-from.md", "## Where remat_meta differs from torch_remat")
    for which, pattern in (("peer", r"^\| (\d+) \|"), ("seed", r"^\| 0\.1: (\d+) \|")):
        numbers = [int(number) for number in re.findall(pattern, text, re.MULTILINE)]
        assert numbers == sorted(set(numbers))
        assert len(numbers) >= (20 if which == "peer" else 5)
        assert set(numbers) <= set(range(1, COUNT[which] + 1))


def pages():
    """Every page of the manual, and the tables beside their tests."""
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), HERE / "README.md", ROOT / "tests/mutants/README.md"]


def examples(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


PAGES = [page for page in pages() if examples(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_the_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the files that they write
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
