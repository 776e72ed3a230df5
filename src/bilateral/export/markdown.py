"""Untrusted text as Markdown that shows it literally; no torch."""

import re
import unicodedata
from collections.abc import Sequence

_ACTIVE = re.compile(r"[\\`*_\[\]<>#!|~&$@]|:(?=//)|(?<=www)\.|^[-+=]")
_FIRST_OF_LIST = re.compile(r"^(\d+)([.)])(?= |$)")
_TURNS_DIRECTION = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def escaped(text: str) -> str:
    """One line in which no character is markup; the invisible is written as its code point."""
    shown = (_shown(letter) for letter in " ".join(text.split()))
    return _FIRST_OF_LIST.sub(r"\1\\\2", _ACTIVE.sub(r"\\\g<0>", "".join(shown)))


def _shown(letter: str) -> str:
    hidden = unicodedata.category(letter) in ("Cc", "Cs") or ord(letter) in _TURNS_DIRECTION
    return f"U+{ord(letter):04X}" if hidden else letter


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the cells are escaped here."""
    rule = ["---"] * len(head)
    lines = [[escaped(cell) for cell in row] for row in (head, *rows)]
    lines.insert(1, rule)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def block(text: str, language: str) -> str:
    """A code block; its fence is longer than any run of backticks within."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
