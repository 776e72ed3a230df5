"""Budgets as users write them: fractions there and back, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bilateral.budgets import fraction_text, parse_budget, parse_fraction, usual_budget


@given(st.integers(1, 2550))
def test_tenths_of_a_level_survive_their_text(tenths):
    value = tenths / 2550
    text = fraction_text(value)
    assert text.endswith("/255")
    assert parse_budget(text) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), ("0.03", 0.03), ("1", 1.0), ("1e-3", 1e-3), (0.5, 0.5)]
)
def test_what_is_read(text, value):
    assert parse_budget(text) == pytest.approx(value)


def test_what_is_no_text_is_left_to_pydantic():
    assert parse_fraction(None) is None and parse_fraction(3) == 3


def test_other_budgets_are_written_as_numbers():
    assert fraction_text(0.1234) == "0.1234" and fraction_text(1 / 3) == "85/255"
    assert fraction_text(1e-9) == "1e-09", "not nought"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8", r"8 is outside \(0, 1\].*did you mean 8/255\?"),
        ("256/255", r"256/255 is outside \(0, 1\]"),
        ("0", "outside"),
        ("-8/255", "outside"),
        (2.0, "2 is outside.*did you mean 2/255"),
        ("8/0", "not a number or a fraction"),
        ("inf", "not a number or a fraction"),
        ("nan/255", "not a number or a fraction"),
        ("8/255/2", "not a number or a fraction"),
        ("eight", "'eight' is not a number"),
        ("", "not a number"),
    ],
)
def test_what_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_budget(text)


def test_the_digits_are_attacked_with_more():
    assert usual_budget("digits") == pytest.approx(40 / 255)
    assert usual_budget("cifar10") == usual_budget("folder:x") == pytest.approx(8 / 255)
