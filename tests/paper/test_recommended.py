"""Recipes beyond the paper: what they are, and the table of what they keep."""

import json
from pathlib import Path

import pytest

from bilateral.cli import main
from bilateral.commands.sweep import read_plan, runs_of
from bilateral.errors import UserError
from bilateral.paper.pages import recommended_page
from bilateral.paper.plan import Choices, columns_of
from bilateral.paper.recipes import recipe_named
from bilateral.paper.recommended import RECIPES, TABLE, table_named
from bilateral.paper.tables import TABLES
from bilateral.training.step import forwards_per_image

STUDIES = Path(__file__).parents[2] / "studies"


def test_the_strong_recipe_is_what_was_judged_on_held_out_images():
    judged = {name: one.run for name, one in runs_of(read_plan(STUDIES / "longest.toml"))}
    run = recipe_named("cifar10-strong")
    assert judged["pull-mix/seed0"] == run.with_fields(recipe="cifar10-r-fgsm")


@pytest.mark.parametrize("name", RECIPES)
def test_a_strong_recipe_costs_no_more_than_eight_forwards(name):
    run = recipe_named(name)
    assert forwards_per_image(run) <= 8 and run.adversary.steps == 1
    assert run.data.name == name.removesuffix("-strong")
    assert run.data.augment == ("crop" if name.startswith("svhn") else "crop-flip"), "no mirror"


def test_the_table_is_named_beside_the_papers():
    assert table_named("recommended") is TABLE and table_named("svhn") is TABLES["svhn"]
    assert "recommended" not in TABLES, "`reproduce all` is the paper"
    with pytest.raises(UserError, match="unknown table 'blackbox'; nearest: black-box"):
        table_named("blackbox")
    assert [column.images for column in columns_of(TABLE, Choices())] == [None, None, None]


def test_two_seeds_are_measured_and_shown_with_their_spread(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--rows", "svhn-strong", "--quick", "--seeds", "2", "--quiet"]
    assert main(["reproduce", "recommended", *words]) == 0
    (row,) = json.loads((tmp_path / "quick" / "recommended.json").read_text())
    assert row["seeds"] == [0, 1] and len(set(row["weights"])) == 2
    for attack in row["attacks"].values():
        low, high = sorted(attack["by_seed"])
        assert attack["accuracy"] == pytest.approx((low + high) / 2)
    assert "not our own table: no figure is of its data" in capsys.readouterr().out


def test_the_page_shows_the_mean_and_the_spread(tmp_path):
    assert "Not measured yet." in recommended_page(tmp_path)
    attack = {"accuracy": 0.51, "images": 10000, "by_seed": [0.508, 0.51, 0.512]}
    row = {
        "title": "cifar10-strong",
        "model": "preact-resnet-18-silu",
        "epochs": 130,
        "seeds": [0, 1, 2],
        "clean_accuracy": 0.81,
        "attacks": {"autoattack": attack},
        "train_seconds": 280.0,
        "device": "a GPU",
        "commit": "abc",
        "command": "bilateral reproduce recommended --seeds 3",
    }
    (tmp_path / "recommended.json").write_text(json.dumps([row]))
    page = recommended_page(tmp_path)
    shown = "| cifar10-strong | preact-resnet-18-silu | 130 | 0, 1, 2 | 81.0 |  |"
    assert f"{shown} 51.0 (50.8 to 51.2) |" in page
    assert "- cifar10-strong (preact-resnet-18-silu, trained in 280 s): a GPU" in page
