"""`bilateral reproduce` through the real command, on the digits."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bilateral.commands.reproduce import with_data
from bilateral.data.datasets import load_training
from bilateral.errors import UserError
from bilateral.paper.plan import Choices, runs_of
from bilateral.paper.reproduce import Reproduction, printed, read_rows
from bilateral.paper.side_by_side import side_by_side
from bilateral.paper.tables import CLEAN, FGSM, TABLES, Column, Gradient, PaperTable, Row
from bilateral.runs import RunFolder
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train
from entry_point import bilateral

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
CPU = torch.device("cpu")
ALL = Choices()
DIGITS = PaperTable(
    "small", "Small", "here", (CLEAN, FGSM), (Row("digits", "digits-r-mc-la", {"FGSM": 50.0}),)
)


@pytest.fixture(scope="module", autouse=True)
def no_data(tmp_path_factory):
    """Nothing is on disk but the digits, whatever the developer has fetched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BILATERAL_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """`reproduce all --quick`, once for all tests here."""
    folder = tmp_path_factory.mktemp("all")
    started = time.monotonic()
    done = bilateral("reproduce", "all", "--quick", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 180
    return folder


def test_every_table_is_written(everything):
    quick = everything / "quick"
    for name, table in TABLES.items():
        rows = json.loads((quick / f"{name}.json").read_text())
        assert [row["title"] for row in rows] == [
            row.title for row in table.rows if not row.quoted
        ], name
        for row in rows:
            assert row["paper"] == {}, "quick figures never stand beside the paper's"
            assert row["quick"] and row["data"] == "digits" and row["model"] == "small-cnn"
            cells = len(row["attacks"]) + len(row["other"]) + (row["clean_accuracy"] is not None)
            assert 0 < cells <= len(table.columns)
            for attack in row["attacks"].values():
                assert 0 <= attack["accuracy"] <= 1 and attack["images"] == 20
        title = f"# a trial run on the digits, not {table.where}:"
        assert (quick / f"{name}.md").read_text().startswith(title), "nobody may mistake it"
    for name in ("steps-figure", "label-formulas"):
        assert ET.parse(quick / f"{name}.svg").getroot().tag.endswith("svg")
    assert not (everything / "results").exists() and not (everything / "runs").exists()


def test_doing_it_again_trains_and_attacks_nothing(everything):
    files = {path: path.stat().st_mtime_ns for path in everything.rglob("*.safetensors")}
    flags = {path: path.read_bytes() for path in everything.rglob("attacks/*.json")}
    assert files and flags
    done = bilateral("reproduce", "cifar10", "--quick", "--json", cwd=everything)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["cifar10"]
    assert rows == json.loads((everything / "quick" / "cifar10.json").read_text())
    assert files == {path: path.stat().st_mtime_ns for path in files}
    changed = [path for path, content in flags.items() if path.read_bytes() != content]
    assert not changed


@pytest.mark.kills
def test_a_killed_call_goes_on_to_the_same_figures(everything, tmp_path):
    words = [sys.executable, "-m", "bilateral", "reproduce", "random-start", "--quick"]
    for moment in (1, 4):
        with subprocess.Popen(
            words,
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            deadline = time.monotonic() + 60
            while (
                len(list(tmp_path.rglob("model.safetensors"))) < moment
                and time.monotonic() < deadline
                and process.poll() is None
            ):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    done = bilateral("reproduce", "random-start", "--quick", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    differing = ("train_seconds", "command", "commit")
    one, other = (
        [
            {key: value for key, value in row.items() if key not in differing}
            for row in json.loads((folder / "quick" / "random-start.json").read_text())
        ]
        for folder in (everything, tmp_path)
    )
    assert one == other


def test_seeds_are_averaged_and_other_rows_stay(tmp_path):
    """With the real path in this process: two seeds, and a results file that holds another row."""
    table = TABLES["cifar10"]
    (row,) = (one for one in table.rows if one.title == "R-MC-LA")
    small = type(table)(table.name, table.title, table.where, table.columns[:2], (row,))
    other = {"title": "R-MC-LA", "recipe": row.recipe, "model": "wrn-28-10", "epochs": 100}
    other["data"] = "digits"
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "cifar10.json").write_text(json.dumps([other]))

    def measured(seeds):
        work = Reproduction(
            tmp_path / "runs", tmp_path / "results", Choices(seeds=seeds, quick=True), CPU, "words"
        )
        return work.table(small)

    one, two = measured(1)[-1], measured(2)
    assert two[0] == other and len(two) == 2, "measured again, a row replaces itself alone"
    assert two[1]["seeds"] == [0, 1]
    second = json.loads(
        (tmp_path / "runs" / "cifar10-r-mc-la" / "seed1" / "evaluation.json").read_text()
    )["entries"][0]
    mean = (one["clean_accuracy"] + second["clean_accuracy"]) / 2
    assert two[1]["clean_accuracy"] == pytest.approx(mean)


def test_a_row_is_never_of_another_run(tmp_path):
    """A run of the recipe's name that somebody trained with other settings, to its end."""
    table = TABLES["cifar10"]
    (row,) = (one for one in table.rows if one.title == "R-MC-LA")
    small = type(table)(table.name, table.title, table.where, table.columns[:1], (row,))
    runs, results = tmp_path / "runs", tmp_path / "results"
    work = Reproduction(runs, results, Choices(quick=True), CPU, "words")
    run = runs_of(small, row, Choices(quick=True))[0]
    other = run.with_fields(epochs=run.epochs + 1)
    folder = RunFolder(runs / "cifar10-r-mc-la" / "seed0")
    train(other, folder, load_training(other), CPU, TrainingProgress(quiet=True))
    with pytest.raises(UserError, match=r"holds another configuration \(epochs"):
        work.table(small)
    assert not results.exists()


def test_printed_figures_are_filed_like_ours():
    table = TABLES["cifar10"]
    (row,) = (one for one in table.rows if one.title == "R-MC-LA")
    found = printed(table, row)
    assert found["clean"] == pytest.approx(0.907) and found["pgd20-last"] == pytest.approx(0.553)
    assert found["network"] == "wrn-28-10" and found["epochs"] == 100
    gradients = TABLES["motivation-gradients"]
    assert printed(gradients, gradients.rows[0])["all mean"] == pytest.approx(395.0)


def test_attacks_that_are_one_under_quick_are_one_column():
    row = {
        "title": "PGD7-2",
        "model": "small-cnn",
        "epochs": 1,
        "seeds": [0],
        "clean_accuracy": 0.9,
    }
    row["attacks"] = {"pgd5-last": {"accuracy": 0.4, "images": 20}}
    head, lines = side_by_side(TABLES["motivation-steps"], [row], Choices(quick=True))
    assert [title for title in head if "pgd5" in title or "PGD" in title] == ["pgd5-last (n = 20)"]
    assert dict(zip(head, lines[0], strict=True))["pgd5-last (n = 20)"] == "40.0"


def test_side_by_side_shows_ours_the_papers_and_the_difference():
    table = TABLES["cifar10"]
    measured = {
        "title": "R-MC-LA",
        "model": "preact-resnet-18",
        "epochs": 30,
        "seeds": [0],
        "clean_accuracy": 0.83,
        "attacks": {"pgd20-last": {"accuracy": 0.4, "images": 10_000}},
        "other": {},
    }
    head, lines = side_by_side(table, [measured], Choices())
    (line,) = (one for one in lines if one[0] == "R-MC-LA")
    cells = dict(zip(head, line, strict=True))
    assert cells["clean"] == "83.0 (90.7, -7.7)"
    assert cells["CE20"] == "40.0 (55.3, -15.3)"
    assert cells["FGSM"] == "" and cells["AutoAttack (n = 1,000)"] == "", "not measured: empty"
    measured["attacks"]["apgd"] = {"accuracy": 0.25, "images": 1000}
    _, lines = side_by_side(table, [measured], Choices())
    assert "25.0 [22.4, 27.8] by apgd" in next(one for one in lines if one[0] == "R-MC-LA")
    quoted = next(one for one in lines if one[0].startswith("Madry") and "quoted" in one[0])
    assert quoted[4] == "(87.3)"


def cells(rows, table=DIGITS, choices=ALL):
    """The cells of a table of one row, by their column."""
    head, (line,) = side_by_side(table, rows, choices)
    return dict(zip(head, line, strict=True))


def test_a_cell_of_other_images_than_its_column_says_so(tmp_path):
    """Few images first, then one column on all: each cell is of its own number."""

    def measured(table, choices):
        return Reproduction(tmp_path, tmp_path, choices, CPU, "words").table(table)

    few, all_ = Choices(epochs=1, images=20), Choices(epochs=1)
    rows = measured(DIGITS, few)
    assert rows[0]["clean_images"] == 20 and rows[0]["test_images"] == 360
    shown = cells(rows, choices=few)
    assert not any("n =" in shown[name] for name in ("clean (n = 20)", "FGSM (n = 20)"))
    shown = cells(rows, choices=all_)
    assert shown["clean"].endswith(" (n = 20)") and shown["FGSM"].endswith(") (n = 20)")
    (row,) = rows = measured(replace(DIGITS, columns=(FGSM,)), all_)
    assert row["clean_images"] == 20, "the earlier call's, as is its accuracy"
    assert cells(rows)["clean"].endswith(" (n = 20)") and "n =" not in cells(rows)["FGSM"]
    assert cells(rows, choices=few)["FGSM (n = 20)"].endswith(" (n = 360)")
    old = {key: part for key, part in row.items() if key not in ("clean_images", "test_images")}
    assert not any("n =" in cell for cell in cells([old]).values()), "an older file's stay"


def test_a_row_keeps_where_its_models_were_trained(tmp_path):
    """Copied from another machine and measured here; the second seed is trained here."""

    def row(seeds):
        work = Reproduction(tmp_path, tmp_path, Choices(epochs=1, seeds=seeds), CPU, "words")
        return work.table(replace(DIGITS, columns=(FGSM,)))[-1]

    assert row(1)["train_device"] == "cpu"
    config = tmp_path / "digits-r-mc-la-1-epochs" / "seed0" / "config.json"
    said = json.loads(config.read_text())
    said["versions"]["device"] = "NVIDIA H200"
    config.write_text(json.dumps(said))
    again = row(1)
    assert (again["train_device"], again["device"]) == ("NVIDIA H200", "cpu")
    assert row(2)["train_device"] == "NVIDIA H200 and cpu"
    config.write_text(json.dumps({key: said[key] for key in ("schema", "run")}))
    assert row(1)["train_device"] == "", "a config.json of one's own may say no versions"


def test_gradients_of_some_images_are_of_those_that_were_looked_at(tmp_path):
    """How many of them are correct is no other number of images."""
    columns = tuple(
        Column(f"{images} max", Gradient(images, "max", "[-1, 1]")) for images in ("all", "correct")
    )
    table = replace(DIGITS, columns=columns)
    rows = Reproduction(tmp_path, tmp_path, Choices(epochs=1), CPU, "words").table(table)
    assert rows[0]["other"]["correct max"]["images"] < 360
    assert not any("n =" in cell for cell in cells(rows, table).values())
    few = cells(rows, table, Choices(images=20))
    assert few["correct max (n = 20)"].endswith(" (n = 360)")


def test_a_figure_is_of_the_whole_table_whatever_was_asked_for(tmp_path):
    """As the table beside it is: rows and columns of earlier calls stay."""
    table = TABLES["steps-figure"]
    rows = [
        {
            "title": row.title,
            "clean_accuracy": 0.9,
            "attacks": {f"pgd{steps}-last": {"accuracy": 0.5} for steps in (2, 20)},
        }
        for row in table.rows[:2]
    ]
    work = Reproduction(tmp_path, tmp_path, Choices(), CPU, "words")
    whole = work.drawing(table, rows)
    assert whole.count(f"<!-- {table.rows[1].title} -->".encode()) == 1
    assert work.drawing(replace(table, rows=table.rows[:1]), rows) == whole
    assert work.drawing(replace(table, columns=(CLEAN,)), rows) == whole


@pytest.mark.parametrize(
    ("there", "quick"),
    [
        ({"quick": True, "data": "digits"}, False),
        ({"data": "digits"}, False),  # of before rows said whether they are quick
        ({"quick": False, "data": "cifar10"}, True),
        ({"data": "cifar10"}, True),
        ({"quick": False, "data": "digits"}, True),
    ],
)
def test_a_file_holds_quick_rows_or_others_never_both(there, quick, tmp_path):
    path = tmp_path / "cifar10.json"
    path.write_text(json.dumps([{"title": "R-MC", **there}]))
    before = path.read_bytes()
    row = {"title": "R-MC-LA", "quick": quick, "weights": []}
    work = Reproduction(tmp_path, tmp_path, Choices(quick=quick), CPU, "words")
    with pytest.raises(UserError, match="choose another --results") as raised:
        work.keep(TABLES["cifar10"], row)
    assert str(raised.value).startswith(f"{path} holds rows of ")
    assert path.read_bytes() == before
    work = Reproduction(tmp_path, tmp_path, Choices(quick=not quick), CPU, "words")
    work.keep(TABLES["cifar10"], row | {"quick": not quick})
    assert len(work.rows(TABLES["cifar10"])) == 2


def test_rows_that_could_not_be_kept_are_not_begun(tmp_path):
    """Through the real command: refused before anything is trained."""
    path = tmp_path / "res2" / "cifar10.json"
    path.parent.mkdir()
    path.write_text(json.dumps([{"title": "R-MC", "data": "cifar10"}]))
    before = path.read_bytes()
    words = ["reproduce", "cifar10", "--quick", "--results", "res2", "--quiet"]
    for further in ([], ["--jobs", "2"]):
        done = bilateral(*words, *further, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "res2/cifar10.json holds rows of full runs" in done.stderr
        assert path.read_bytes() == before and list(tmp_path.rglob("*")) == [path.parent, path]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar11"], "unknown table 'cifar11'; nearest: cifar10"),
        (["cifar10", "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["cifar10", "--quick", "--results", "results"], "--quick never writes to results/"),
        (["cifar10", "--model", "wrn"], "unknown model 'wrn'"),
        (["cifar10"], "cifar10 cannot be measured: cifar10 is not on disk"),
        (["cifar10", "--rows"], "--rows needs a value"),
        (["cifar10", "--rows", "--quick"], "--rows needs a value"),
        (["cifar10", "--columns", "AA"], "available: clean, FGSM, CE7, CE20, AutoAttack"),
        (["table5"], "unknown table 'table5': Table 5 of the paper is cifar10 here"),
        (["5"], "Table 5 of the paper is cifar10 here"),
        (["figure-1"], "Figure 1 of the paper is steps-figure here"),
        (["99"], "unknown table '99'"),
        (["cifar10", "--quick", "--epochs", "3"], "--epochs 3 has no effect with --quick"),
        (["cifar10", "--quick", "--images", "3"], "--images 3 has no effect with --quick"),
        (["cifar10", "--quick", "--model", "wrn-28-10"], "has no effect with --quick"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path):
    done = bilateral("reproduce", *words, "--quiet", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert not list(Path(tmp_path).iterdir())


def test_a_damaged_results_file_is_named(tmp_path):
    path = tmp_path / "cifar10.json"
    path.write_text("[{")
    with pytest.raises(UserError, match=r"cifar10\.json is damaged"):
        read_rows(path)


def test_a_plan_says_what_it_costs_and_does_nothing(tmp_path):
    done = bilateral("reproduce", "cifar10", "--quick", "--plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "10 models for 1 table, 0 of them trained already" in done.stdout
    assert "training 10 models: about" in done.stdout
    assert done.stderr == ""
    assert not list(tmp_path.iterdir())


def test_a_plan_needs_no_data_but_says_what_is_missing(tmp_path):
    words = ["reproduce", "gradients", "--model", "small-cnn", "--plan", "--json"]
    done = bilateral(*words, cwd=tmp_path, BILATERAL_DATA=str(tmp_path / "none"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = [row for row in TABLES["gradients"].rows if not row.quoted]
    assert len(found["models"]) == len(rows) and found["trained"] == []
    assert found["training_seconds"] > 0 and list(found["evaluation_seconds"]) == ["gradients"]
    assert "gradients: 8 of 8 rows are left out: cifar10 is not on disk" in done.stderr


def test_all_leaves_out_what_has_no_data(tmp_path):
    """Said before anything is trained; a single table is refused instead."""
    none = str(tmp_path / "none")
    done = bilateral("reproduce", "all", "--model", "small-cnn", cwd=tmp_path, BILATERAL_DATA=none)
    assert done.returncode == 0, done.stderr
    for name, table in TABLES.items():
        rows = sum(not row.quoted for row in table.rows)
        assert f"{name}: {rows} of {rows} rows are left out: " in done.stderr
    assert "0 models for 0 tables" in done.stderr
    assert not list(tmp_path.iterdir())


def test_rows_without_data_do_not_cost_the_others(monkeypatch):
    """ImageNet is on few disks; the gradients of the other data sets are still measured."""
    monkeypatch.setattr(
        "bilateral.data.datasets.load",
        lambda name, *_, **__: None if name != "folder:imagenet" else _absent(),
    )
    said = []
    (table,) = with_data([TABLES["gradients"]], Choices(), False, said.append)
    assert [row.title for row in table.rows if not row.quoted] == [
        f"{data} {model}"
        for data in ("CIFAR10", "SVHN")
        for model in ("undefended", "madry", "ours")
    ]
    assert said == ["gradients: 2 of 8 rows are left out: imagenet is not a folder"]
    with pytest.raises(UserError, match="not a folder"):
        list(with_data([TABLES["imagenet"]], Choices(), False, said.append))


def _absent():
    raise UserError("imagenet is not a folder")
