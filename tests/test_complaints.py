"""What pydantic complains of, told in plain words."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bilateral.complaints import LONGEST, first_complaint, shown
from bilateral.config import Run
from bilateral.runs import differences


class Part(BaseModel):
    depth: int = 0


class Value(BaseModel):
    """A field for each way of being wrong."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    count: Annotated[int, Field(ge=1, lt=2**31)] = 1
    rate: Annotated[float, Field(gt=0, le=0.5)] = 0.5
    way: Literal["up", "down"] = "up"
    name: str = ""
    flag: bool = False
    places: Annotated[list[int], Field(min_length=1)] = [0]
    pair: tuple[int, int] = (0, 0)
    part: Part = Part()
    needed: int
    odd: int = 1

    @field_validator("odd")
    @classmethod
    def _is_odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(f"{value} is even")
        return value


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"count": 0}, "count 0: must be at least 1"),
        ({"count": 2**31}, "count 2147483648: must be below 2147483648"),
        ({"count": "many"}, "count 'many': must be a whole number"),
        ({"count": 1.5}, "count 1.5: must be a whole number"),
        ({"count": None}, "count None: must be a whole number"),
        ({"rate": 0.0}, "rate 0: must be above 0"),
        ({"rate": 0.75}, "rate 0.75: must be at most 0.5"),
        ({"rate": "x"}, "rate 'x': must be a number"),
        ({"rate": float("nan")}, "rate nan: must be a finite number"),
        ({"way": "left"}, "way 'left': must be one of up, down"),
        ({"name": 3}, "name 3: must be text"),
        ({"flag": "perhaps"}, "flag 'perhaps': must be true or false"),
        ({"places": 3}, "places 3: must be a list"),
        ({"places": [1, "x"]}, "places.1 'x': must be a whole number"),
        ({"places": []}, "places: must have at least 1 value"),
        ({"part": 3}, "part 3: must be a table of fields"),
        ({"part": {"depth": []}}, "part.depth: must be a whole number"),
        ({"odd": 4}, "odd: 4 is even"),
        ({"neded": 3}, "neded is unknown"),
        ({"name": ["x"] * 1000}, "name: must be text"),
        ({"count": "x" * (LONGEST + 1)}, "count: must be a whole number"),
    ],
)
def test_every_way_of_being_wrong(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Value.model_validate({"needed": 1, **fields})
    assert first_complaint(caught.value) == words


def test_what_is_missing_and_what_is_no_json() -> None:
    with pytest.raises(ValidationError) as caught:
        Value.model_validate({})
    assert first_complaint(caught.value) == "needed is missing"
    with pytest.raises(ValidationError) as caught:
        Value.model_validate_json("{")
    assert "Invalid JSON" in first_complaint(caught.value)


def test_control_characters_of_a_file_do_not_reach_the_terminal() -> None:
    assert shown("\x1b[31mred") == "'\\x1b[31mred'"


def test_differences_are_written_as_users_write_budgets() -> None:
    other = Run().with_paths({"adversary.epsilon": 0.1, "adversary.step_size": "4/255"})
    assert differences(Run(), other) == [
        "adversary.epsilon: 8/255 -> 25.5/255",
        "adversary.step_size: 8/255 -> 4/255",
    ]
