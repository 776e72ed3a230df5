"""Parts of a table, and several models at once: the same figures as one after another."""

import json
from dataclasses import replace

import pytest
import torch

from bilateral.commands.reproduce import narrowed
from bilateral.errors import UserError
from bilateral.paper.plan import Choices, all_runs, shared_runs
from bilateral.paper.reproduce import Reproduction
from bilateral.paper.tables import TABLES
from entry_point import bilateral

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    words = ["reproduce", "random-start", "--quick", "--rows", "R-MC", "R-LL"]
    done = bilateral(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def figures(folder, name="random-start"):
    """A table's rows without what differs from call to call, by title."""
    rows = json.loads((folder / "quick" / f"{name}.json").read_text())
    differing = ("train_seconds", "command", "commit", "jobs")
    return {
        row["title"]: {key: value for key, value in row.items() if key not in differing}
        for row in rows
    }


def test_only_the_named_rows_are_measured(one_by_one):
    assert set(figures(one_by_one)) == {"R-MC", "R-LL"}
    trained = {path.parent.parent.name for path in one_by_one.rglob("model.safetensors")}
    assert trained == {"cifar10-r-mc", "cifar10-r-ll", "cifar10-undefended"}


@pytest.mark.kills
def test_at_once_gives_the_same_figures(one_by_one, tmp_path):
    words = ["reproduce", "random-start", "--quick", "--rows", "R-MC", "R-LL", "--jobs", "2"]
    done = bilateral(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert figures(tmp_path) == figures(one_by_one)
    rows = json.loads((tmp_path / "quick" / "random-start.json").read_text())
    assert {row["jobs"] for row in rows} == {2}
    assert {row["command"] for row in rows} == {"bilateral " + " ".join(words)}
    assert "training 1 models, 2 at once" in done.stderr and "R-MC" in done.stdout


def test_columns_of_the_same_weights_are_drawn_together(one_by_one):
    before = figures(one_by_one)["R-MC"]
    words = ["reproduce", "random-start", "--quick", "--rows", "R-MC", "--columns", "FGSM RS"]
    done = bilateral(*words, cwd=one_by_one)
    assert done.returncode == 0, done.stderr
    assert figures(one_by_one)["R-MC"] == before, "what the call left out is still there"
    (row,) = (
        row
        for row in json.loads((one_by_one / "quick" / "random-start.json").read_text())
        if row["title"] == "R-MC"
    )
    assert row["command"].count("&&") == 1 and row["command"].endswith("--columns 'FGSM RS'")


def test_columns_of_other_weights_are_not(tmp_path):
    work = Reproduction(tmp_path, tmp_path, Choices(), CPU, "words")
    table = TABLES["cifar10"]
    row = {
        "title": "R-MC",
        "recipe": "cifar10-r-mc",
        "model": "wrn-28-10",
        "epochs": 100,
        "data": "cifar10",
        "clean_accuracy": 0.9,
        "weights": ["a"],
        "device": "cpu",
        "commit": "abc",
        "command": "first",
        "attacks": {"fgsm-last": {"accuracy": 0.5, "images": 10}},
        "other": {},
    }
    later = {**row, "clean_accuracy": None, "command": "second"}
    later["attacks"] = {"pgd7-last": {"accuracy": 0.4, "images": 10}}
    work.keep(table, row)
    work.keep(table, later)
    (found,) = work.rows(table)
    assert set(found["attacks"]) == {"fgsm-last", "pgd7-last"} and found["clean_accuracy"] == 0.9
    assert found["command"] == "first && second"
    work.keep(table, {**later, "weights": ["b"]})
    (found,) = work.rows(table)
    assert set(found["attacks"]) == {"pgd7-last"} and found["clean_accuracy"] is None


def test_columns_of_several_calls_are_of_all_their_commits_and_devices(tmp_path):
    """The newest last, each once."""
    work = Reproduction(tmp_path, tmp_path, Choices(), CPU, "words")
    table = TABLES["cifar10"]
    row = {"title": "R-MC", "weights": ["a"], "clean_accuracy": 0.9, "attacks": {}, "other": {}}
    row |= {"command": "words", "train_device": "NVIDIA H200"}

    def kept(device, commit, **changes):
        work.keep(table, {**row, "device": device, "commit": commit, **changes})
        (found,) = work.rows(table)
        return found["device"], found["commit"]

    assert kept("NVIDIA H200", "one") == ("NVIDIA H200", "one")
    assert kept("NVIDIA H200", "two") == ("NVIDIA H200", "one and two")
    assert kept("cpu", "three") == ("NVIDIA H200 and cpu", "one and two and three")
    assert kept("NVIDIA H200", "one") == ("cpu and NVIDIA H200", "two and three and one")
    assert kept("cpu", "new", weights=["b"]) == ("cpu", "new"), "nothing of the others is left"


def test_a_table_is_narrowed_to_what_was_named():
    tables = [TABLES["cifar10"], TABLES["budget"]]
    (table,) = narrowed(tables, ["R-MC"], ["CE20"])
    assert [row.title for row in table.rows] == ["R-MC"]
    assert [column.title for column in table.columns] == ["CE20"]
    assert list(narrowed(tables, [], [])) == tables
    with pytest.raises(UserError, match="unknown row 'R-CM'; nearest: R-MC"):
        list(narrowed(tables, ["R-CM"], []))
    with pytest.raises(UserError, match="unknown column 'CE200'"):
        list(narrowed(tables, [], ["CE200"]))


def test_sources_are_trained_before_the_rows_that_share_them():
    choices = Choices()
    table = TABLES["random-start"]
    assert list(shared_runs(table, choices)) == ["cifar10-undefended/seed0"]
    assert set(shared_runs(table, choices)) < set(all_runs([table], choices))
    black_box = shared_runs(TABLES["black-box"], choices)
    assert "cifar10-r-mc-la/seed1" in black_box and "cifar10-r-mc-la/seed0" not in black_box
    assert not shared_runs(replace(table, columns=table.columns[:2]), choices)


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--rows", "R-CM"]])
def test_bad_input(words, tmp_path):
    done = bilateral("reproduce", "cifar10", "--quick", *words, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
