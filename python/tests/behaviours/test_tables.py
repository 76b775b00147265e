# SPDX-License-Identifier: BSD-3-Clause

"""The tables of docs/behaviours.md and docs/torch_remat.md name tests that exist, and have every behaviour. The Python code of
both pages runs, and their links lead somewhere."""

import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
DOCS = ROOT / "docs"
COUNT = {"peer": 144, "seed": 41}


def section(file, heading):
    text = (DOCS / file).read_text()
    assert text.count(f"\n{heading}\n") == 1
    return re.split(r"\n## ", text.split(f"\n{heading}\n")[1])[0]


def rows(which):
    """Returns {number: last column}; every number occurs once."""
    heading = {"peer": "### torch_remat 0.2.2 in Python", "seed": "### torch_remat 0.1 in Python"}[which]
    text = re.split(r"\n### ", section("behaviours.md", heading))[0]
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
    text = section("torch_remat.md", "## Where remat_meta differs from torch_remat")
    for which, pattern in (("peer", r"^\| (\d+) \|"), ("seed", r"^\| 0\.1: (\d+) \|")):
        numbers = [int(number) for number in re.findall(pattern, text, re.MULTILINE)]
        assert numbers == sorted(set(numbers))
        assert len(numbers) >= (20 if which == "peer" else 5)
        assert set(numbers) <= set(range(1, COUNT[which] + 1))


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("README.md", 1),
        ("docs/python.md", 9),
        ("docs/pains.md", 1),
        ("docs/policies.md", 1),
        ("docs/auto_checkpoint.md", 1),
        ("docs/budgets.md", 1),
        ("docs/offload.md", 1),
        ("docs/tools.md", 1),
        ("docs/distributed.md", 2),
        ("docs/compile.md", 2),
        ("docs/torch_remat.md", 1),
    ],
)
def test_the_examples_of_the_pages_run(page, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the programs write files
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= count
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if page in ("README.md", "docs/python.md"):
        assert names["x"].grad is not None


def test_all_pages_with_python_are_run():
    pages = [page.name for page in DOCS.glob("*.md") if "```python" in page.read_text()]
    assert sorted(pages) == [
        "auto_checkpoint.md", "budgets.md", "compile.md", "distributed.md", "offload.md", "pains.md", "policies.md", "python.md",
        "tools.md", "torch_remat.md",
    ]


def without_code(page):
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_the_pages_lead_somewhere():
    count = 0
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), (page.name, link)
            assert not anchor or anchor in anchors(target), (page.name, link)
            count += 1
    assert count > 50
