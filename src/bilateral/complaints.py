"""Pydantic's validation errors in plain words; no torch."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

LONGEST = 60
"""The most characters of a value that is shown; a longer one is left out."""

_BOUNDS = {
    "greater_than": ("must be above", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be below", "lt"),
    "less_than_equal": ("must be at most", "le"),
}
_KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a finite number",
    "bool": "must be true or false",
    "string": "must be text",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be a table of fields",
    "model": "must be a table of fields",
}
_OF_A_KIND = re.compile(rf"({'|'.join(_KINDS)})_(?:\w+_)?(?:type|parsing|number|float)")


def first_complaint(error: ValidationError) -> str:
    """A pydantic error as one line: the field, what it holds, and what is wrong with that."""
    if error.error_count() > 1000:  # a list of millions would take gigabytes
        return f"{error.error_count():,} values are wrong"
    first = error.errors()[0]
    return complaint(first, ".".join(str(part) for part in first["loc"]))


def complaint(fault: Mapping[str, Any], name: str) -> str:
    """One of pydantic's errors as `name 0: must be at least 1`."""
    kind = fault["type"]
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"{name} is unknown"
    if kind == "value_error":  # one of ours: it quotes the value where that helps
        message = re.sub(r"^Value error, ", "", fault["msg"])
        return f"{name}: {message}" if name else message
    given = " ".join(part for part in (name, shown(fault["input"])) if part)
    return f"{given}: {_needed(fault)}" if given else _needed(fault)


def shown(value: object) -> str:
    """A plain value as a user would write it; empty for a long one, or one of another type."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    text = repr(value) if isinstance(value, str | int | float | None) else ""
    return text if len(text) <= LONGEST else ""


def _needed(fault: Mapping[str, Any]) -> str:
    """What the value must be."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"{words} {shown(context[key])}"
    if kind == "too_short":
        return f"must have at least {context['min_length']} value"
    if kind == "literal_error":
        choices = str(context["expected"]).replace(" or ", ", ").replace("'", "")
        return f"must be one of {choices}"
    if match := _OF_A_KIND.fullmatch(kind):
        return _KINDS[match[1]]
    return re.sub(r"^Input should (have|be) ", r"must \1 ", fault["msg"])
