"""Distances between images in [0, 1], read and written in 255ths; no torch."""

import math
from typing import Annotated

import tyro
from pydantic import BeforeValidator


def parse_fraction(text: object) -> object:
    """`"8/255"` as a float; any other type is returned unchanged, for pydantic to check."""
    if not isinstance(text, str):
        return text
    numerator, slash, denominator = text.partition("/")
    try:
        value = float(numerator) / (float(denominator) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"'{text}' is not a number or a fraction such as 8/255")
    return value


def fraction_text(value: float) -> str:
    """A budget as text: in 255ths if it is a multiple of a tenth of one."""
    pixels = value * 255
    if math.isclose(pixels, round(pixels, 1), rel_tol=1e-6):
        return f"{round(pixels, 1):g}/255"
    return f"{value:g}"


def parse_budget(text: object) -> float:
    """A distance between images in [0, 1]: `8/255`, `0.03`."""
    value = float(str(parse_fraction(text)))
    if not 0 < value <= 1:
        hint = f"; did you mean {value:g}/255?" if value > 1 else ""
        given = text if isinstance(text, str) else f"{value:g}"
        raise ValueError(f"{given} is outside (0, 1]: images are floats in [0, 1]{hint}")
    return value


_fraction_on_command_line = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="FRACTION",
    instance_from_str=lambda words: parse_budget(words[0]),
    is_instance=lambda value: isinstance(value, float),
    str_from_instance=lambda value: [fraction_text(value)],
)

Fraction = Annotated[
    float,
    BeforeValidator(parse_budget),
    _fraction_on_command_line,
]


def usual_budget(data: str) -> float:
    """The L-inf budget that a data set is usually attacked with."""
    return 40 / 255 if data == "digits" else 8 / 255
