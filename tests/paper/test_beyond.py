"""Recipes beyond the paper: what they are, and the table of what they keep."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bilateral.cli import main
from bilateral.commands import sweep
from bilateral.errors import UserError
from bilateral.machine import Machine
from bilateral.paper import reproduce
from bilateral.paper.beyond import EVERY_TABLE, RUNS, TABLE, table_named
from bilateral.paper.pages import beyond_page
from bilateral.paper.plan import Choices, columns_of, run_name, runs_of
from bilateral.paper.recipes import recipe_named
from bilateral.paper.tables import TABLES
from bilateral.runs import RunFolder
from bilateral.training.step import forwards_per_image

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.mark.parametrize(
    ("study", "epochs", "held_out"), [("longest", 130, 2000), ("prior", 65, 3000)]
)
def test_the_strong_recipe_is_what_was_judged_but_for_its_guard_and_all_images(
    study, epochs, held_out
):
    plan = sweep.read_plan(STUDIES / f"{study}.toml")
    judged = {name: one.run for name, one in sweep.runs_of(plan)}["cutmix-last/seed0"]
    run = recipe_named("cifar10-strong")
    assert (run.epochs, run.guard, run.check_epochs) == (130, "two-step", 5)
    watched = run.with_fields(guard="watch", check_epochs=judged.check_epochs, epochs=epochs)
    watched = watched.with_fields(recipe="cifar10-r-fgsm")
    assert judged == watched.with_paths({"data.held_out": held_out})


def test_what_turns_is_the_strong_recipe_and_the_fast_one_but_for_the_turn():
    """So that `turned` and `minute` stand beside what was measured without a turn."""
    turned, minute = (
        {name: one.run for name, one in sweep.runs_of(sweep.read_plan(STUDIES / f"{study}.toml"))}
        for study in ("turned", "minute")
    )
    prior = sweep.runs_of(sweep.read_plan(STUDIES / "prior.toml"))
    (before,) = [one.run for name, one in prior if name == "cutmix-last/seed0"]
    assert turned["eight/seed0"] == before.with_paths({"optimiser.turn": 0.015, "epochs": 45})
    fast = recipe_named("cifar10-fast").with_paths({"data.held_out": 3000, "check_epochs": 5})
    fast = fast.with_fields(recipe="cifar10-r-fgsm")
    assert minute["fast/seed0"] == fast
    assert minute["fast-turn/seed0"] == fast.with_paths({"optimiser.turn": 0.015})


def test_the_fast_recipe_is_what_was_judged_but_for_its_length_and_all_images():
    plan = sweep.read_plan(STUDIES / "fast.toml")
    judged = {name: one.run for name, one in sweep.runs_of(plan)}["nuat/seed0"]
    run = recipe_named("cifar10-fast").with_fields(recipe="cifar10-r-fgsm", epochs=judged.epochs)
    assert judged == run.with_paths({"data.held_out": 1000})


@pytest.mark.parametrize("name", RUNS)
def test_a_strong_recipe_costs_no_more_than_eight_forwards(name):
    run = recipe_named(name)
    assert forwards_per_image(run) <= 8 and run.adversary.steps == 1
    assert run.data.name == name.partition("-")[0]
    assert run.data.augment == ("crop" if name.startswith("svhn") else "crop-flip"), "no mirror"


def test_the_table_is_named_beside_the_papers():
    assert table_named("beyond") is TABLE and table_named("svhn") is TABLES["svhn"]
    assert "beyond" not in TABLES, "`reproduce all` is the paper"
    with pytest.raises(UserError, match="unknown table 'blackbox'; nearest: black-box"):
        table_named("blackbox")
    assert [column.images for column in columns_of(TABLE, Choices())] == [None, None, None]


@pytest.mark.parametrize("quick", [False, True])
def test_different_runs_have_different_folders(quick):
    """Over all tables: two rows that train different models never share a folder."""
    choices, found = Choices(quick=quick), {}
    for table in EVERY_TABLE.values():
        for row in table.rows:
            for run in runs_of(table, row, choices):
                folder = f"{run_name(run, choices)}/seed{run.seed}"
                assert found.setdefault(folder, run) == run, folder


@pytest.mark.parametrize(("kind", "compiled"), [("cuda", [True, False]), ("cpu", [False, False])])
def test_the_search_is_compiled_for_the_whole_test_set_alone(kind, compiled, monkeypatch, tmp_path):
    seen = []

    def measured(target, names, epsilon, count, device, compile):
        seen.append(compile)
        summary = SimpleNamespace(accuracy=0.5, images=10)
        return SimpleNamespace(attacks=dict.fromkeys(names, summary), clean_accuracy=0.9, images=10)

    target = SimpleNamespace(split=SimpleNamespace(image_values=3, labels=range(5000)))
    monkeypatch.setattr(reproduce, "evaluate_target", measured)
    monkeypatch.setattr(reproduce, "find_target", lambda *_: target)
    monkeypatch.setattr(reproduce.Reproduction, "trained", lambda *_: RunFolder(tmp_path))
    device = torch.device(kind)
    work = reproduce.Reproduction(tmp_path, tmp_path, Choices(), device, "", print, Machine())
    for table in (TABLE, TABLES["other-attacks"]):
        columns = [column for column in table.columns if column.title == "AutoAttack"]
        work._measure(table, table.rows[0], recipe_named("cifar10-strong"), columns)
    assert seen == compiled


def test_two_seeds_are_measured_and_shown_with_their_spread(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--rows", "svhn-strong", "--quick", "--seeds", "2", "--quiet"]
    assert main(["reproduce", "beyond", *words]) == 0
    (row,) = json.loads((tmp_path / "quick" / "beyond.json").read_text())
    assert row["seeds"] == [0, 1] and len(set(row["weights"])) == 2
    assert row["clean_accuracy"] == pytest.approx(sum(row["clean_by_seed"]) / 2)
    assert row["train_seconds"] == pytest.approx(sum(row["train_seconds_by_seed"]) / 2)
    for attack in row["attacks"].values():
        low, high = sorted(attack["by_seed"])
        assert attack["accuracy"] == pytest.approx((low + high) / 2)
    assert "not our own table: no figure is of its data" in capsys.readouterr().out


def test_the_page_shows_the_mean_and_the_spread(tmp_path):
    assert "Not measured yet." in beyond_page(tmp_path)
    attack = {"accuracy": 0.51, "images": 10000, "by_seed": [0.508, 0.51, 0.512]}
    row = {
        "title": "cifar10-strong",
        "model": "preact-resnet-18-silu",
        "epochs": 130,
        "seeds": [0, 1, 2],
        "clean_accuracy": 0.81,
        "clean_by_seed": [0.80, 0.81, 0.82],
        "attacks": {"autoattack": attack},
        "train_seconds": 280.0,
        "device": "a GPU",
        "commit": "abc",
        "command": "bilateral reproduce beyond --seeds 3",
    }
    (tmp_path / "beyond.json").write_text(json.dumps([row]))
    page = beyond_page(tmp_path)
    facts = "| cifar10-strong | preact-resnet-18-silu | 130 | 0, 1, 2 |"
    shown = f"{facts} 81.0 (80.0 to 82.0) |  |"
    assert f"{shown} 51.0 (50.8 to 51.2) |" in page
    assert page.count("\n|") == 2, "a row that was not measured is not shown empty"
    assert page.endswith("yet: cifar10-fast; cifar10-wide; svhn-strong; cifar100-strong.")
    assert "- cifar10-strong (preact-resnet-18-silu, trained in 280 s): a GPU" in page
