# SPDX-License-Identifier: BSD-3-Clause

"""docs/limits.md names tests that exist."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[3]


def rows_of_the_page():
    """Yields the id and the last column of each row."""
    lines = (ROOT / "docs" / "limits.md").read_text().splitlines()
    return [(row[1], row[2]) for row in (re.match(r"\| ([A-Z]\d+) \|.*\| ([^|]+) \|$", line) for line in lines) if row]


def test_each_limit_of_the_page_has_an_id_of_its_own_and_names_a_test_that_there_is():
    rows = rows_of_the_page()
    ids = [name for name, _ in rows]
    assert len(ids) > 100 and len(set(ids)) == len(ids)
    here = [*pathlib.Path(__file__).parent.glob("test_*.py"), ROOT / "python/tests/limit_checks.py"]
    here = "".join(path.read_text() for path in here)
    cases = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.cpp"))
    for name, tests in rows:
        if re.match(r"L\b", tests):
            assert re.search(rf"def (test_)?(\w+_)?{name.lower()}_", here), name
        for file, test in re.findall(r"([\w/]+\.py)::(\w+)", tests):
            assert f"def {test}(" in (ROOT / "python/tests" / file).read_text(), (name, test)
        for case in re.findall(r'\.cpp "([^"]+)"', tests):
            assert case in re.sub(r'"\s*\n\s*"', "", cases), (name, case)


def test_each_limit_of_the_page_is_in_a_table():
    in_table, outside = False, []
    for line in (ROOT / "docs" / "limits.md").read_text().splitlines():
        in_table = line.startswith("|") and (in_table or line.startswith("| id |"))
        if re.match(r"\| [A-Z]\d+ \|", line) and not in_table:
            outside.append(line[:40])
    assert not outside
