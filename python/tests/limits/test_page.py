# SPDX-License-Identifier: BSD-3-Clause

"""Each row of docs/reference/limits.md names a test that exists."""

import pathlib
import re

from .rows import TESTS

ROOT = pathlib.Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/limits.md").read_text()


def test_each_limit_of_the_page_has_an_id_of_its_own_and_a_line_in_the_list_of_tests():
    ids = re.findall(r"^\| ([A-Z]\d+) \|", PAGE, re.MULTILINE)
    assert len(ids) > 100
    assert ids == list(TESTS)


def test_the_tests_of_the_limits_are_there():
    here = [*pathlib.Path(__file__).parent.glob("test_*.py"), ROOT / "python/tests/limit_checks.py"]
    here = "".join(path.read_text() for path in here)
    cases = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.cpp"))
    for name, tests in TESTS.items():
        found = re.findall(r"([\w/]+\.py)((?:::\w+(?:, )?)*)", tests)
        if re.match(r"L\b", tests):
            assert re.search(rf"def (test_)?(\w+_)?{name.lower()}_", here), name
        for file, functions in found:
            text = (ROOT / "python/tests" / file).read_text()
            for test in re.findall(r"\w+", functions):
                assert f"def {test}(" in text, (name, test)
        said = re.findall(r'\.cpp "([^"]+)"', tests)
        for case in said:
            assert case in re.sub(r'"\s*\n\s*"', "", cases), (name, case)
        assert re.match(r"L\b|no test", tests) or found or said, name


def test_each_limit_of_the_page_is_in_a_table():
    in_table, outside = False, []
    for line in PAGE.splitlines():
        in_table = line.startswith("|") and (in_table or line.startswith("| id |"))
        if re.match(r"\| [A-Z]\d+ \|", line) and not in_table:
            outside.append(line[:40])
    assert not outside


def test_the_limits_that_people_meet_are_rows_of_the_page():
    first = PAGE.split("## Ten limits that people meet")[1].split("\n## ")[0]
    rows = [row.split("|")[-2] for row in first.strip().splitlines()[2:]]
    assert len(rows) == 10
    assert all(name in TESTS for row in rows for name in re.findall(r"[A-Z]\d+", row))
