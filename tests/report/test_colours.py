"""The page's colours: told apart by readers of every colour vision, and seen on the page."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import bilateral.report
from bilateral.report.charts import DASHES, MARKS, SERIES, colour, dashes, mark

STYLE = (Path(bilateral.report.__file__).parent / "style.css").read_text()
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""What is left of linear RGB: Machado, Oliveira and Fernandes (2009), severity 1."""


def colours(scheme):
    """The custom properties of a scheme that are colours, as linear RGB."""
    light, dark = (found[1] for found in re.finditer(r":root \{(.*?)\}", STYLE, re.S))
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark))
    return {name: linear(value) for name, value in found.items()}


def linear(written):
    share = np.array([int(written[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of linear RGB: a distance below 10 is hard to see between thin lines."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    curved = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = curved
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    """WCAG's ratio."""
    low, high = sorted(rgb @ np.array([0.2126, 0.7152, 0.0722]) for rgb in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_the_measures_of_this_test_are_right():
    black, white = linear("#000000"), linear("#ffffff")
    assert contrast(black, white) == pytest.approx(21)
    assert lab(white) == pytest.approx([100, 0, 0], abs=0.1)
    red, olive = linear("#b02020"), linear("#6d5a10")  # one to a deuteranope, not to others
    apart = {
        name: np.linalg.norm(lab(np.array(left) @ red) - lab(np.array(left) @ olive))
        for name, left in DEFICIENCIES.items()
    }
    assert apart["deuteranopia"] < 12 < 40 < apart["none"], apart


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_lines_are_told_apart_by_colour(scheme, deficiency):
    found = colours(scheme)
    seen = [
        lab(np.array(DEFICIENCIES[deficiency]) @ found[f"series-{number}"])
        for number in range(SERIES)
    ]
    for one, other in itertools.combinations(range(SERIES), 2):
        apart = np.linalg.norm(seen[one] - seen[other])
        least = 15 if max(one, other) < 5 else 10  # a page of one run has five lines at most
        assert apart > least, f"series {one} and {other} with {deficiency}: {apart:.1f}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_seen_on_the_page(scheme):
    found = colours(scheme)
    for number in range(SERIES):
        assert contrast(found[f"series-{number}"], found["page"]) >= 2.95
    for name in ("ink", "quiet", "holds", "suspect", "masked", "unknown"):
        for ground in ("page", "panel"):
            assert contrast(found[name], found[ground]) >= 4.5, f"{name} on {ground}"


def test_looks_differ_without_lines_too():
    """A scatter has marks and colours alone: 49 runs differ in one of them, 28 lines in dashes."""
    marks = {(colour(look), mark(look)) for look in range(SERIES * len(MARKS))}
    assert len(marks) == SERIES * len(MARKS)
    lines = {(colour(look), dashes(look)) for look in range(SERIES * len(DASHES))}
    assert len(lines) == SERIES * len(DASHES)
