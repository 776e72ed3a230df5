"""Configuration: fractions, refusals with their reasons, JSON there and back."""

import json

import pytest
from pydantic import ValidationError

from bilateral.budgets import fraction_text
from bilateral.complaints import first_complaint
from bilateral.config import (
    Adversary,
    GradientAttack,
    Labels,
    Optimiser,
    Run,
    run_from_json,
)
from bilateral.errors import UserError
from bilateral.paper.recipes import RECIPES
from bilateral.runs import differences


def complaint(build, *arguments):
    with pytest.raises(ValidationError) as caught:
        build(*arguments)
    return first_complaint(caught.value)


def test_fractions_are_read_and_written():
    assert GradientAttack(epsilon="8/255").epsilon == 8 / 255
    assert [fraction_text(value) for value in (8 / 255, 1.6 / 255, 1.0, 0.3, 0.1234)] == [
        "8/255",
        "1.6/255",
        "255/255",
        "76.5/255",
        "0.1234",
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"adversary": {"epsilon": 8}}, "did you mean 8/255"),
        ({"adversary": {"epsilon": "8/0"}}, "not a number or a fraction"),
        ({"adversary": {"epsilon": float("nan")}}, "nan is outside"),
        ({"adversary": {"steps": -1}}, "adversary.steps"),
        ({"adversary": {"restarts": 2}}, "restarts need iterate"),
        ({"adversary": {"loss": "divergence", "reference": "start"}}, "reference = clean"),
        ({"labels": {"ratio": 0.9}}, "labels.ratio"),
        ({"labels": {"rule": "smoothed"}}, "labels.rule"),
        ({"epochs": 0}, "epochs"),
        ({"optimiser": {"milestones": [0.9, 0.6]}}, "rising fractions"),
        ({"optimiser": {"learning_rate": float("inf")}}, "learning_rate"),
        ({"averaging": 1.0}, "averaging"),
        ({"epoch": 3}, "epoch"),
    ],
)
def test_bad_values_are_refused_with_the_reason(fields, reason):
    assert reason in complaint(Run.model_validate, fields)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_json(name):
    run = RECIPES[name].run
    text = json.dumps({"schema": 1, "run": run.model_dump(mode="json"), "versions": {}})
    assert run_from_json(text, "config.json") == run
    assert run.recipe == name


def test_a_damaged_config_is_named():
    with pytest.raises(UserError, match=r"here/config\.json"):
        run_from_json(b'{"run": {"epochs": 0}}', "here/config.json")


def test_differences_name_the_fields():
    one = Run()
    other = one.with_fields(epochs=5, adversary=Adversary(epsilon=4 / 255))
    found = differences(one, other)
    assert "epochs: 100 -> 5" in found
    assert any(line.startswith("adversary.epsilon: ") for line in found)
    assert len(found) == 2
    assert differences(one, Run()) == []


def test_values_are_frozen():
    with pytest.raises(ValidationError):
        Labels().ratio = 3
    with pytest.raises(ValidationError):
        Optimiser().with_fields(batch_size=0)
