"""`docs/guarantees.md`: each promise names tests, and the tests are there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def promises() -> list[str]:
    """The rows of all tables, without their heads."""
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [row for row in rows if not row.startswith("| ---") and not row.endswith("held by |")]


def test_every_promise_names_a_test():
    assert len(promises()) > 15
    for row in promises():
        held_by = row.rstrip("| ").rpartition(" | ")[2]
        assert NAMED.findall(held_by), f"no test holds: {row}"
        assert NAMED.sub("", held_by).strip(" ,") == "", f"what is this: {held_by}"


def test_every_test_that_is_named_exists():
    for file, name in NAMED.findall(PAGE):
        path = ROOT / file
        assert path.is_file(), f"{file} is not there"
        functions = {
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, f"{file} has no {name}"


def test_the_campaigns_are_run():
    """By CI after the tests, and apart from them."""
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands.index("make test") < commands.index("make faults")
    makefile = (ROOT / "Makefile").read_text()
    assert "--ignore tests/faults" in makefile and "BILATERAL_SOAK_SECONDS ?= 1800" in makefile
