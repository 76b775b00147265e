# SPDX-License-Identifier: BSD-3-Clause

"""The rules of both fuzzers cite rows that exist, and match words that occur at one place in remat's source."""

import pathlib
import re

import pytest

from .refusals import REFUSALS, Rule

ROOT = pathlib.Path(__file__).parents[3]
LITERAL = r'"((?:[^"\\\n]|\\.)*)"'
RULES = (ROOT / "tests" / "fuzz" / "refusals.cpp").read_text()


def joined(text):
    """Returns the string literals of the text; adjacent ones are joined, as the compiler does."""
    code = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    found = re.finditer(rf"{LITERAL}(?:\s*{LITERAL})*", code)
    return ["".join(re.findall(LITERAL, match.group())).replace('\\"', '"') for match in found]


SOURCES = [
    text
    for folder in ("include", "engine", "tape", "forward", "backend", "placeholder", "python/bindings")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".cpp", ".h")
    for text in joined(path.read_text())
]


def rules_of_cpp():
    """Returns rows, type, words and further words of each `Refusal{"B4 B8", Type::kMismatch, "words", ...}`."""
    found = re.findall(rf"Refusal\{{{LITERAL},\s*Type::(\w+),\s*((?:{LITERAL}\s*)+),([^}}]*)\}}", RULES)
    return [(rows, "".join(re.findall(LITERAL, words)), '"' in rest) for rows, _, words, _, rest in found]


def all_rules():
    return [(r.rows, r.text, bool(r.several), r.torchs) for r in REFUSALS] + [(*rule, False) for rule in rules_of_cpp()]


def test_both_fuzzers_have_rules():
    assert len(rules_of_cpp()) == RULES.count("Refusal{") > 20
    assert len(REFUSALS) > 40


def test_each_rule_cites_rows_of_the_page_of_limits():
    rows = set(re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs/reference/limits.md").read_text(), re.MULTILINE))
    for cited, text, _, _ in all_rules():
        assert cited and set(cited.split()) <= rows, (cited, text)


def test_each_rule_matches_words_of_one_place_of_the_source():
    for cited, text, several, torchs in all_rules():
        places = sum(text in literal for literal in SOURCES)
        wanted = places == 0 if torchs else places >= 1 if several else places == 1
        assert wanted, (cited, text, places)


@pytest.mark.parametrize(
    ("error", "source", "fits"),
    [
        (RuntimeError("op x: expected y. Do not"), "SAVE", True),
        (RuntimeError("expected y"), "SAVE", True),
        (NotImplementedError("op x: expected y. Do not"), "SAVE", False),  # a subclass
        (RuntimeError("op x: unexpected y"), "SAVE", False),
        (RuntimeError("op x: expected y. Do not"), "", False),
    ],
)
def test_a_rule_wants_the_very_type_whole_words_and_the_part_of_the_program(error, source, fits):
    assert Rule("B4", "RuntimeError", "expected y", "SAVE").fits(error, source) == fits
