# SPDX-License-Identifier: BSD-3-Clause

"""Counts the comments of tracked files that open with a word that refers to nothing yet: "Of", "That", "What", ...

python3 comment_openers.py [ROOT]: prints each with its place, and fails when there are LIMIT or more.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

LIMIT = 30
OPENER = re.compile(r"(of|that|what|the same|none|whose)(?=[\s.,:;]|$)", re.IGNORECASE)
QUESTION = re.compile(r"(what|whose)[^.:?!]*\?", re.IGNORECASE)

# The first alternative that fits is skipped; only comments are in a group.
CPP = re.compile(
    r'R"(?P<cpp>[^\s()\\]*)\(.*?\)(?P=cpp)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'"  # the ' in 1'000 opens no character
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)",
    re.DOTALL,
)
CMAKE = re.compile(
    r"\[(?P<level>=*)\[.*?\](?P=level)\]"
    r'|"(?:\\.|[^"\\])*"'
    r"|\\."
    r"|(?P<comment>\#\[(?P<bracket>=*)\[.*?\](?P=bracket)\]|\#[^\n]*)",
    re.DOTALL,
)
SHELL = re.compile(
    r"<<-?[ ]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)[^\n]*\n.*?^\t*(?P=end)$"
    r"|\\."
    r"|'[^']*'"
    r'|"(?:\\.|\$\((?:[^()"]|"(?:\\.|[^"\\])*"|\([^()]*\))*\)|[^"\\])*"'
    r"|(?<![\s;&|()])\#"  # $#, ${name#prefix}
    r"|(?P<comment>\#[^\n]*)",
    re.DOTALL | re.MULTILINE,
)


class Comment(NamedTuple):
    line: int
    column: int
    marker: str
    text: str
    is_alone: bool  # no code stands before it on its line


def comment_at(line: int, column: int, raw: str, before: str) -> Comment:
    marker = re.match(r"[/*#!<\[=]*", raw).group()
    return Comment(line, column, marker, raw[len(marker) :].strip(), not before.strip())


def found_by(pattern: re.Pattern, source: str) -> list[Comment]:
    comments = []
    for match in pattern.finditer(source):
        if match["comment"]:
            start = match.start()
            line_start = source.rfind("\n", 0, start) + 1
            line = source.count("\n", 0, start) + 1
            comments.append(comment_at(line, start - line_start, match["comment"], source[line_start:start]))
    return comments


def of_python(source: str) -> list[Comment]:
    comments = []
    after_statement = True  # a string that begins a statement and ends it is a docstring
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token, following in zip(tokens, tokens[1:] + tokens[-1:], strict=True):
        line, column = token.start
        if token.type == tokenize.COMMENT:
            comments.append(comment_at(line, column, token.string, token.line[:column]))
        elif token.type == tokenize.STRING and after_statement and following.type == tokenize.NEWLINE:
            text = token.string.lstrip("rRuU").strip("\"'").strip()
            comments.append(Comment(line, column, "docstring", text, True))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            after_statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return comments


def comments_of(path: Path) -> list[Comment]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return of_python(source)
    if path.suffix in (".cpp", ".h"):
        return found_by(CPP, source)
    return found_by(SHELL if path.suffix == ".sh" else CMAKE, source)


def goes_on(comment: Comment, last: Comment | None) -> bool:
    """True if `comment` is a further line of the comment `last`: one below it, alone, in its column."""
    return (
        last is not None
        and comment.is_alone
        and (comment.line, comment.column) == (last.line + 1, last.column)
        and (comment.marker == last.marker or not last.is_alone)
    )


def dangling(comments: list[Comment]) -> list[Comment]:
    found = []
    last = None
    for comment in comments:
        if not goes_on(comment, last) and OPENER.match(comment.text) and not QUESTION.match(comment.text):
            found.append(comment)
        last = comment
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
    kinds = ["*.cpp", "*.h", "*.py", "*.cmake", "*.sh", "*CMakeLists.txt"]
    listed = subprocess.run(["git", "ls-files", "-z", *kinds], cwd=root, capture_output=True, text=True, check=True)
    count = 0
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():  # else it is removed, and not yet committed
            for comment in dangling(comments_of(root / name)):
                print(f"{name}:{comment.line}: {comment.text.splitlines()[0][:100]}")
                count += 1
    print(f"{count} comments open with a dangling word; fewer than {LIMIT} are allowed")
    return count >= LIMIT


if __name__ == "__main__":
    sys.exit(main())
