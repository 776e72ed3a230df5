"""`bilateral sweep`: what is run, what is dropped, how it is ranked, and that it goes on."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bilateral import sweeps
from bilateral.cli import main
from bilateral.commands.sweep import Plan, read_plan, runs_of
from bilateral.config import config_digest
from bilateral.data.datasets import load
from bilateral.errors import TrainingError, UserError
from bilateral.models.own_code import source_digest
from bilateral.paper.recipes import recipe_named
from bilateral.paper.studies import crossed_page, ranking_page
from bilateral.results import Evaluation
from bilateral.runs import RunFolder
from bilateral.sweeps import Dropped, Early, alike, early_readings, hopeless
from bilateral.training.preparation import training_part
from bilateral.trials import Trial, crossed, effects
from entry_point import bilateral

SMALL = """
recipe = "digits-r-mc-la"
epsilon = ["40/255", "60/255"]
attacks = "pgd10"
held_out = 100
[fields]
epochs = 3
check-epochs = 1
"data.images_per_class" = 60
[grid]
"adversary.target" = ["none", "least-likely"]
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "small.toml").write_text(SMALL)
    out = str(folder / "out")
    assert main(["sweep", str(folder / "small.toml"), "--out", out, "--quiet", "--json"]) == 0
    return folder


def trials(folder):
    return json.loads((folder / "out" / "sweep.json").read_text())["trials"]


def planned_by(text, tmp_path):
    """The runs of a file with these lines."""
    path = tmp_path / "sweep.toml"
    path.write_text(f'recipe = "cifar10-r-mc-la"\n{text}\n')
    return dict(runs_of(read_plan(path)))


def test_every_run_is_a_normal_run_folder_judged_on_held_out_images(swept):
    names = {trial["name"] for trial in trials(swept)}
    assert names == {"target-none/seed0", "target-least-likely/seed0"}
    digits = load("digits", "train")
    for trial in trials(swept):
        folder = RunFolder(swept / "out" / trial["name"])
        run = folder.read_run()
        assert run.adversary.target == trial["fields"]["adversary.target"]
        assert run.epochs == 3 and run.data.held_out == 100
        entries = json.loads((folder.path / "held-out.json").read_text())["entries"]
        found, wider = (Evaluation.model_validate(entry) for entry in entries)
        assert wider.epsilon_text == "60/255"
        assert trial["also"] == {"60/255": wider.worst_case_accuracy}
        assert wider.worst_case_accuracy <= found.worst_case_accuracy
        assert found.worst_case_accuracy == trial["robust_accuracy"]
        assert found.images == trial["images"] == 100
        _, held_out = training_part(digits, run)
        counts = {name.name: name.images for name in found.per_class}
        assert counts == {
            str(label): int(count) for label, count in enumerate(np.bincount(held_out.labels))
        }
    robust = [trial["robust_accuracy"] for trial in trials(swept)]
    assert robust == sorted(robust, reverse=True), "best first"
    plan = json.loads((swept / "out" / "sweep.json").read_text())["plan"]
    assert plan["axes"] == {"adversary.target": ["none", "least-likely"]}
    assert plan["recipe"] == "digits-r-mc-la" and plan["fields"]["epochs"] == 3
    assert plan["jobs"] == 1 and plan["command"].startswith("bilateral sweep ")
    for trial in trials(swept):
        assert trial["versions"]["device"] == "cpu" and trial["versions"]["commit"]


def test_what_is_done_is_not_done_again(swept, capsys):
    before = {path: path.stat().st_mtime_ns for path in swept.rglob("*.safetensors")}
    words = ["sweep", str(swept / "small.toml"), "--out", str(swept / "out")]
    assert main(words) == 0
    assert before == {path: path.stat().st_mtime_ns for path in swept.rglob("*.safetensors")}
    shown = capsys.readouterr()
    assert "pgd10 at 40/255 (%)" in shown.out and "target-none/seed0" in shown.out
    assert "runs: 2, judged by pgd10 at 40/255 and 60/255 on 100 images held out" in shown.err


def test_a_spent_budget_starts_nothing_and_says_so(tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SMALL)
    words = ["sweep", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out")]
    for wrong in ("-1", "nan"):
        assert main([*words, "--minutes", wrong]) == 2
        assert "--minutes" in capsys.readouterr().err
    assert main([*words, "--minutes", "0"]) == 0
    assert "target-none/seed0: not started, time is up" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.safetensors"))
    assert {trial["status"] for trial in trials(tmp_path)} == {"not started"}


def test_weights_that_may_know_the_judges_are_told_of(swept, tmp_path, capsys):
    begun = SMALL.replace("[fields]\n", f'[fields]\nweights = "{tmp_path}/w.safetensors"\n')
    shutil.copy(swept / "out/target-none/seed0/model.safetensors", tmp_path / "w.safetensors")
    for text, told in ((SMALL, False), (begun, True)):
        (tmp_path / "small.toml").write_text(text)
        words = ["sweep", str(tmp_path / "small.toml"), "--out", str(tmp_path / f"out-{told}")]
        assert main([*words, "--minutes", "0"]) == 0
        assert (
            "start from given weights: if those were trained" in capsys.readouterr().err
        ) == told


def test_a_sweep_knows_the_file_that_its_runs_begin_with(swept, tmp_path, monkeypatch, capsys):
    """It must be there before hours are spent, and another in its place is another sweep."""
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "w.safetensors"
    one = SMALL.partition("[grid]")[0].replace("epochs = 3", f'epochs = 1\nweights = "{weights}"')
    (tmp_path / "small.toml").write_text(one)
    words = ["sweep", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*words, "--plan"]) == 0, "which trains nothing"
    assert main(words) == 2
    assert capsys.readouterr().err == f"bilateral: no weights at {weights}\n"
    assert not (tmp_path / "out").exists()
    sources = [swept / f"out/target-{name}/seed0" for name in ("none", "least-likely")]
    shutil.copy(sources[0] / "model.safetensors", weights)
    assert main(words) == 0
    (trial,) = trials(tmp_path)
    folder = RunFolder(tmp_path / "out" / "base" / "seed0")
    assert trial["config_digest"] == config_digest(folder.read_run())
    assert main(words) == 0, "the same file is the same sweep"
    (tmp_path / "small.toml").write_text(
        one.replace(str(weights), str(shutil.move(weights, "m.safetensors")))
    )
    assert main(words) == 0, "and so is it elsewhere"
    (tmp_path / "small.toml").write_text(one)
    shutil.copy(sources[1] / "model.safetensors", weights)
    capsys.readouterr()
    assert main(words) == 2
    assert "was trained with other settings (weights_digest" in capsys.readouterr().err


@pytest.mark.kills
def test_a_killed_sweep_goes_on_to_the_same_end(swept, tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    words = [sys.executable, "-m", "bilateral", "sweep", "small.toml", "--out", "out", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob("model.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
    subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert [
        {key: value for key, value in trial.items() if key != "seconds"}
        for trial in trials(tmp_path)
    ] == [
        {key: value for key, value in trial.items() if key != "seconds"} for trial in trials(swept)
    ]


def test_the_grid_the_list_and_the_seeds_are_multiplied():
    plan = Plan(
        recipe="cifar10-r-mc-la",
        fields={"epochs": 30},
        grid={"adversary.epsilon": ["4/255", "8/255"], "labels.ratio": [9, 20]},
        runs=[{"name": "plain"}, {"name": "wide", "adversary.start_width": 2.0}],
        seeds=[3, 5],
    )
    found = dict(runs_of(plan))
    assert len(found) == 16
    assert "epsilon-8-255-ratio-20-plain/seed3" in found, "a name stands behind the grid's values"
    wide = found["epsilon-4-255-ratio-9-wide/seed5"]
    plan.runs = [{"adversary.start_width": 1.0}, {"adversary.start_width": 2.0}]
    planned = dict(runs_of(plan))["epsilon-4-255-ratio-9-start-width-2-0/seed5"]
    assert (planned.run, planned.fields) == (wide.run, wide.fields)
    assert planned.chosen == {
        "adversary.epsilon": "4/255",
        "labels.ratio": "9",
        "run": "start-width-2-0",
    }
    assert wide.chosen["run"] == "wide"
    run, own = planned.run, planned.fields
    assert (run.seed, run.epochs, run.data.held_out, run.labels.ratio) == (5, 30, 1000, 9)
    assert run.adversary.epsilon == pytest.approx(4 / 255)
    assert run.adversary.step_size == pytest.approx(4 / 255), "a step follows its budget"
    assert own == {
        "adversary.epsilon": "4/255",
        "labels.ratio": 9,
        "adversary.start_width": 2.0,
    }
    plan.runs = [{"name": "plain"}, {"name": "plain", "epochs": 3}]
    with pytest.raises(UserError, match="'epsilon-4-255-ratio-9-plain': give each a `name`"):
        dict(runs_of(plan))


@pytest.mark.parametrize(
    "text",
    [
        "[grid]\nlabels.ratio = [9, 20]\n[[runs]]\nname = 'same'\nlabels.ratio = 5",
        "[grid]\nlabels.ratio = [9, 20]\n[choices.labels.strong]\nlabels.ratio = 5",
        "[choices.a.one]\nlabels.ratio = 9\n[choices.b.two]\nlabels.ratio = 5",
    ],
)
def test_a_run_is_not_named_by_a_value_that_another_part_replaced(text, tmp_path):
    with pytest.raises(UserError, match=r"labels\.ratio: only one of grid, choices and runs"):
        planned_by(text, tmp_path)


def test_single_runs_are_an_axis_of_their_own():
    """Runs of one place in the grid are no seeds of one configuration."""
    runs = [{"name": "plain"}, {"name": "long", "epochs": 40}]
    plan = Plan(recipe="cifar10-r-mc-la", grid={"labels.ratio": [9, 20]}, runs=runs)
    robust = {"plain": 0.3, "long": 0.5}
    made = [
        Trial(name, one.fields, "done", 0.9, robust[one.chosen["run"]], chosen=one.chosen)
        for name, one in runs_of(plan)
    ]
    axes = {"labels.ratio": ["9", "20"], "run": ["plain", "long"]}
    assert crossed(made, axes, "run")[1] == [["9", "30.0", "50.0"], ["20", "30.0", "50.0"]]
    assert effects(made, axes, "run")[1] == [["long", "+20.0", "+20.0 to +20.0", "2 of 2"]]
    assert effects(made, axes, "labels.ratio")[1] == [["20", "+0.0", "+0.0 to +0.0", "0 of 2"]]


CHOICES = """
[grid]
adversary.target = ["none", "most-confusing"]
[choices.start.random]
[choices.start.wide]
adversary.start_width = 2.0
adversary.projection = "none"
[choices.labels.one-hot]
labels.rule = "one-hot"
[choices.labels.ratio-20]
labels.ratio = 20
"""


def test_choices_of_several_fields_are_multiplied_too(tmp_path):
    found = planned_by(CHOICES, tmp_path)
    assert len(found) == 8 and next(iter(found)) == "target-none-random-one-hot/seed0"
    planned = found["target-most-confusing-wide-ratio-20/seed0"]
    assert planned.chosen == {
        "adversary.target": "most-confusing",
        "start": "wide",
        "labels": "ratio-20",
    }
    recipe = recipe_named("cifar10-r-mc-la")
    assert planned.run.adversary == recipe.adversary.with_fields(start_width=2, projection="none")
    assert planned.run.labels == recipe.labels.with_fields(ratio=20)
    plain = found["target-none-random-one-hot/seed0"].run
    assert plain.adversary == recipe.adversary.with_fields(target="none")
    assert plain.labels.rule == "one-hot"


@pytest.mark.parametrize(
    "text",
    [
        '[fields]\n"adversary.epsilon" = "4/255"\ndata.name = "svhn"',
        '[fields]\nadversary.epsilon = "4/255"\ndata = "svhn"',
        '[fields.adversary]\nepsilon = "4/255"\n[fields.data]\nname = "svhn"',
        '[[runs]]\nadversary.epsilon = "4/255"\ndata = "svhn"',
        '[grid]\nadversary.epsilon = ["4/255"]\ndata = ["svhn"]',
    ],
)
def test_a_field_of_a_part_leaves_the_rest_of_the_part_alone(text, tmp_path):
    """TOML reads a dotted key as a table: it once stood for the whole adversary."""
    (planned,) = planned_by(text, tmp_path).values()
    run = planned.run
    recipe = recipe_named("cifar10-r-mc-la")
    assert run.adversary == recipe.adversary.with_fields(epsilon="4/255", step_size="4/255")
    assert run.data.with_fields(held_out=0) == recipe.data.with_fields(name="svhn")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe = 3", "recipe 3: must be text"),
        ("recipe = 'digits-r-mc-la'\nnonsense = 1", "nonsense is unknown (available: recipe, "),
        (
            "recipe = 'digits-r-mc-la'\n[fields]\nepoch = 3",
            "unknown field 'epoch'; nearest: epochs",
        ),
        ("recipe = 'digits-r-mc-la'\n[grid]\n'data.name.x' = [3]", "unknown field 'data.name.x'"),
        ("recipe = 'digits-r-mc-la'\n[fields]\nepochs = 0", "epochs 0: must be at least 1"),
        ("recipe = 'cifar10-rmc'", "unknown recipe 'cifar10-rmc'"),
        ("recipe = 'digits-r-mc-la'\nattacks = 'pgdx'", "unknown attack 'pgdx'"),
        ("recipe = 'digits-r-mc-la'\nepsilon = '8'", "did you mean 8/255?"),
        ("recipe = 'digits-r-mc-la'\nepsilon = ['8/255', '8']", "did you mean 8/255?"),
        ("recipe = ", "cannot be read"),
        ("recipe = 'digits-r-mc-la'\nseeds = [-1]", "seeds.0 -1: must be at least 0"),
        ("recipe = 'digits-r-mc-la'\nheld_out = -5", "held_out -5: must be at least 1"),
        (
            "recipe = 'digits-r-mc-la'\n[grid]\nseed = [0, 1]",
            "seeds are set by `seeds` in the file",
        ),
        ("recipe = 'digits-r-mc-la'\n[grid]\n'data.held_out' = [0]", "must be 1 or more"),
        ("recipe = 'digits-r-mc-la'\nheld_out = 5000", "less than the 1,437 training images"),
        ("recipe = 'digits-r-mc-la'\nseeds = []", "seeds: must have at least 1 value"),
        ("recipe = 'digits-r-mc-la'\n[grid]\nepochs = []", "grid.epochs: must have at least 1"),
        ("recipe = 'digits-r-mc-la'\n[grid]\nepochs = 3", "grid.epochs 3: must be a list"),
        ("recipe = 'digits-r-mc-la'\n[choices.a]", "choices.a: must have at least 1 value"),
        ("recipe = 'digits-r-mc-la'\n[choices.a.b]\nepoch = 3", "unknown field 'epoch'"),
        (
            "recipe = 'digits-r-mc-la'\n[choices.run.b]\nepochs = 3\n[[runs]]\nname = 'x'",
            "choices.run: the name is taken",
        ),
        ("recipe = 'digits-r-mc-la'\nminutes = -4", "minutes -4: must be at least 0"),
        ("recipe = 'digits-r-mc-la'\nminutes = nan", "minutes nan: must be a finite number"),
        ("recipe = 'digits-r-mc-la'\n[fields]\nmodel = 'small-cn'", "nearest: small-cnn"),
        ("recipe = 'digits-r-mc-la'\n[fields]\ndata = 'digit'", "nearest: digits"),
        ("recipe = 'digits-r-mc-la'\nattacks = 'pgd9-step0'", "S above 0 and at most 255"),
    ],
)
def test_bad_files_are_one_line(text, message, tmp_path, capsys):
    (tmp_path / "bad.toml").write_text(text)
    assert main(["sweep", str(tmp_path / "bad.toml"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert str(tmp_path / "bad.toml") in error
    assert not (tmp_path / "out").exists()
    assert main(["sweep", str(tmp_path / "none.toml")]) == 2


def test_a_plan_lists_the_runs_and_does_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    assert main(["sweep", "small.toml", "--plan"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "target-none/seed0: 3 epochs, adversary.target none",
        "target-least-likely/seed0: 3 epochs, adversary.target least-likely",
    ]
    assert main(["sweep", "small.toml", "--plan", "--json"]) == 0
    names = ["target-none/seed0", "target-least-likely/seed0"]
    assert json.loads(capsys.readouterr().out) == names
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def record(epoch, pgd10):
    check = {"clean": 0.9, "fgsm": 0.6, "pgd10": pgd10}
    return {"epoch": epoch, "step": 1, "loss": 1.0, "images_per_second": 1.0, "check": check}


def test_hopeless_runs_are_dropped_after_a_third(tmp_path):
    """The others are read anew each time: they may be under way."""
    best = RunFolder(tmp_path / "best")
    best.path.mkdir()
    others = [best, RunFolder(tmp_path / "not-there-yet")]
    read(tmp_path / "first", others, {3: 0.1})
    for epoch, share in enumerate([0.3, 0.4, 0.5], start=1):
        best.append_log(record(epoch, share))
    read(tmp_path / "early", others, {1: 0.0})
    with pytest.raises(Dropped, match=r"after epoch 3: PGD-10 10\.0 % where another had 50\.0 %"):
        read(tmp_path / "hopeless", others, {2: 0.4, 3: 0.1})
    read(tmp_path / "fair", others, {3: 0.35})
    read(tmp_path / "last", others, {9: 0.0})
    half_written = RunFolder(tmp_path / "half")
    half_written.path.mkdir()
    half_written.log.write_text(json.dumps(record(3, 0.9))[:40])
    read(tmp_path / "beside", [half_written], {3: 0.1})
    assert early_readings(best) == {1: 0.3, 2: 0.4, 3: 0.5}


def test_a_run_that_keeps_its_best_weights_may_fall(tmp_path):
    """Its best reading stands for it, and that of the others for them."""
    other = RunFolder(tmp_path / "other")
    other.path.mkdir()
    for epoch, share in enumerate([0.3, 0.6, 0.1, 0.1], start=1):
        other.append_log(record(epoch, share))
    read(tmp_path / "falls", [other], {3: 0.5, 4: 0.0}, keep="best")
    with pytest.raises(Dropped, match=r"PGD-10 5\.0 % where another had 60\.0 %"):
        read(tmp_path / "never-rose", [other], {3: 0.05, 4: 0.02}, keep="best")
    behind = [RunFolder(tmp_path / "not-there-yet"), other]
    read(tmp_path / "ahead", behind, {5: 0.0}, keep="best")


def read(path, others, readings, keep="last"):
    """A run of nine epochs comes to these readings."""
    run = recipe_named("digits-r-mc-la").with_paths(
        {"data.held_out": 500, "check_epochs": 1, "keep": keep, "epochs": 9}
    )
    folder = RunFolder(path)
    folder.path.mkdir()
    progress = Early(folder, run, others)
    for epoch, share in readings.items():
        folder.append_log(record(epoch, share))
        progress.epoch(record(epoch, share), 9)


def test_at_once_gives_the_same_trials(swept, tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    done = bilateral("sweep", "small.toml", "--out", "out", "--jobs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "target-none/seed0: " in done.stderr and "target-none/seed0" in done.stdout
    differing = ("seconds",)
    assert [
        {key: value for key, value in trial.items() if key not in differing}
        for trial in trials(tmp_path)
    ] == [
        {key: value for key, value in trial.items() if key not in differing}
        for trial in trials(swept)
    ]


def test_runs_made_one_by_one_are_gathered_into_a_ranking(swept, tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SMALL)
    words = ["sweep", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*words, "--trial", "target-none/seed0"]) == 0
    assert "target-none/seed0" in capsys.readouterr().out
    assert not (tmp_path / "out" / "sweep.json").exists(), "the ranking is left alone"
    told = json.loads((tmp_path / "out" / "target-none" / "seed0" / "trial.json").read_text())
    assert told["trials"][0]["status"] == "done" and told["trials"][0]["images"] == 100
    assert not (tmp_path / "out" / "target-least-likely").exists()
    shutil.copytree(swept / "out" / "target-least-likely", tmp_path / "out" / "target-least-likely")
    elsewhere = tmp_path / "out" / "target-least-likely" / "seed0" / "trial.json"
    elsewhere.write_text(elsewhere.read_text().replace('"device": "cpu"', '"device": "a GPU"'))
    assert main([*words, "--minutes", "0"]) == 0, "nothing is left to do"
    made = {trial["name"]: trial["versions"]["device"] for trial in trials(tmp_path)}
    assert made == {"target-none/seed0": "cpu", "target-least-likely/seed0": "a GPU"}
    without_times = [
        [{**trial, "seconds": 0, "early": 0, "versions": 0} for trial in trials(folder)]
        for folder in (swept, tmp_path)
    ]
    assert without_times[0] == without_times[1]
    (tmp_path / "out" / "target-none" / "seed0" / "trial.json").write_text("{}")
    assert main(words) == 2
    assert "trial.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("change", [("pgd10", "pgd5"), ("epochs = 3", "epochs = 2")])
def test_a_file_that_changes_under_the_jobs_is_told_of(change, tmp_path, monkeypatch, capsys):
    path, out = tmp_path / "small.toml", str(tmp_path / "out")
    path.write_text(SMALL)

    def at_once(commands, jobs, done, may_start):
        path.write_text(SMALL.replace(*change))
        name, words = next(iter(commands.items()))
        assert main(list(words)) == 0
        done(name)

    monkeypatch.setattr("bilateral.sweeps.run_together", at_once)
    assert main(["sweep", str(path), "--out", out, "--jobs", "2", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "bilateral: target-none/seed0: the sweep's file or your own code has changed; "
        "start the sweep again\n"
    )


def test_an_axis_that_was_renamed_is_told_of_by_its_new_name(swept, tmp_path):
    """The runs are the same ones: nothing is trained again."""
    shutil.copytree(swept / "out", tmp_path / "out")
    path = tmp_path / "small.toml"
    choices = [
        f'[choices.aim.target-{target}]\nadversary.target = "{target}"\n'
        for target in ("none", "least-likely")
    ]
    path.write_text(SMALL.partition("[grid]")[0] + "".join(choices))
    assert main(["sweep", str(path), "--out", str(tmp_path / "out"), "--minutes", "0"]) == 0
    assert {trial["status"] for trial in trials(tmp_path)} == {"done"}
    for trial in trials(tmp_path):
        assert trial["chosen"] == {"aim": trial["name"].removesuffix("/seed0")}
    assert "| aim, beside target-none |" in crossed_page(tmp_path / "out" / "sweep.json")


def test_when_the_time_is_spent_none_is_started(tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SMALL)
    words = ["sweep", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out")]
    for more in ([], ["--jobs", "2"]):
        assert main([*words, "--minutes", "0", *more]) == 0
        assert capsys.readouterr().err.count("not started, time is up") == 2
        assert {trial["status"] for trial in trials(tmp_path)} == {"not started"}


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--jobs", "0"], "--jobs 0: must be at least 1"), (["--trial", "x"], "unknown run 'x'")],
)
def test_bad_options_are_one_line(words, message, tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SMALL)
    assert main(["sweep", str(tmp_path / "small.toml"), "--out", str(tmp_path), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_hopeless_means_surely_below_half():
    assert hopeless(0.1, 0.5, 250) and not hopeless(0.24, 0.5, 250)
    assert not hopeless(0.1, 0.5, 20), "twenty images are not sure"


def test_an_edited_file_is_not_answered_with_old_results(swept, capsys):
    edited = swept / "edited.toml"
    edited.write_text(SMALL.replace("epochs = 3", "epochs = 4"))
    assert main(["sweep", str(edited), "--out", str(swept / "out")]) == 2
    assert "was trained with other settings (epochs: 3 -> 4): choose" in capsys.readouterr().err


OWN = """
recipe = "digits-undefended"
attacks = "own.py:attack"
held_out = 50
[fields]
model = "network.py:network"
epochs = 10
check-epochs = 0
"data.images_per_class" = 100
[[runs]]
name = "a"
[[runs]]
name = "b"
optimiser.momentum = 0.8
"""
OWN_CODE = """
import torch
def network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
def attack(model, images, labels, epsilon):
    return images
"""
STRONGER = "return (images + epsilon * torch.randn_like(images).sign()).clamp(0, 1)"


@pytest.fixture
def own(tmp_path, monkeypatch, capsys):
    """A sweep over a network and by an attack of one's own, the first of two runs done."""
    monkeypatch.chdir(tmp_path)
    Path("network.py").write_text(OWN_CODE)
    Path("own.py").write_text(OWN_CODE)
    Path("own.toml").write_text(OWN)
    words = ["sweep", "own.toml", "--out", "out", "--quiet"]
    assert main([*words, "--trial", "a/seed0"]) == 0
    capsys.readouterr()
    return words


def edit(name, before, after):
    text = Path(name).read_text()
    assert before in text
    Path(name).write_text(text.replace(before, after))


def test_a_trial_that_another_attack_judged_is_judged_again_and_not_trained_again(own, tmp_path):
    """The attack kept its name, and 97.0 by nothing stood above 53.0 by something."""
    weights = tmp_path / "out" / "a" / "seed0" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    edit("own.py", "return images", STRONGER)
    assert main(own) == 0
    robust = {trial["name"]: trial["robust_accuracy"] for trial in trials(tmp_path)}
    clean = {trial["name"]: trial["clean_accuracy"] for trial in trials(tmp_path)}
    assert robust["a/seed0"] < clean["a/seed0"], "by images as they are nothing is lost"
    assert weights.stat().st_mtime_ns == before
    judging = json.loads((tmp_path / "out" / "sweep.json").read_text())["judging"]
    assert judging["settings"]["own.py:attack"]["digest"] == source_digest("own.py:attack")


def test_what_was_dropped_no_attack_judged(own, tmp_path):
    path = tmp_path / "out" / "a" / "seed0" / "trial.json"
    told = json.loads(path.read_text())
    told["trials"][0] |= {"status": "dropped after epoch 1: ...", "robust_accuracy": None}
    path.write_text(json.dumps(told))
    edit("own.py", "return images", STRONGER)
    assert main(own) == 0
    statuses = {trial["name"]: trial["status"] for trial in trials(tmp_path)}
    assert statuses == {"a/seed0": "dropped after epoch 1: ...", "b/seed0": "done"}


def test_a_network_that_was_edited_is_not_ranked_beside_what_it_was(own, capsys):
    assert main([*own, "--trial", "a/seed0"]) == 0, "the same code goes on"
    capsys.readouterr()
    edit("network.py", "Flatten()", "Flatten(), torch.nn.Linear(64, 64)")
    assert main(own) == 2
    error = capsys.readouterr().err
    assert error == (
        f"bilateral: out/a/seed0 was trained with other code of {Path.cwd()}/network.py:network: "
        "choose another --out, or give the run another name\n"
    )


def test_a_network_that_failed_may_be_mended(own, tmp_path, monkeypatch):
    """Nothing of it was trained: there is nothing that the new code would go on with."""
    edit("own.toml", '"a"', '"c"')

    def fails(*_):
        raise TrainingError("the loss is not finite")

    with monkeypatch.context() as patch:
        patch.setattr("bilateral.sweeps.train", fails)
        assert main([*own, "--trial", "c/seed0"]) == 0
    edit("network.py", "Flatten()", "Flatten(), torch.nn.Identity()")
    assert main([*own, "--trial", "c/seed0"]) == 0
    (trial,) = json.loads(Path("out/c/seed0/trial.json").read_text())["trials"]
    assert trial["status"] == "done"
    assert trial["code_digest"] == source_digest("network.py:network")


def test_a_network_edited_after_an_interrupted_training_is_told_of(own, monkeypatch, capsys):
    """Weights are there, but nobody has judged them yet."""

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bilateral.sweeps.evaluate", killed)
        assert main(own) == 130
    assert Path("out/b/seed0/model.safetensors").exists()
    edit("network.py", "Linear(64, 10)", "Linear(64, 10, bias=False)")
    capsys.readouterr()
    assert main([*own, "--trial", "b/seed0"]) == 2
    assert "seed0 was trained with other code of " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["network.py", "own.py"])
def test_code_that_changes_while_it_is_judged_is_told_of(name, own, monkeypatch, capsys):
    """Files of one's own are read anew for every trial, and a sweep takes hours."""
    real = sweeps.evaluate

    def edited(*given):
        edit(name, "def attack", "\ndef attack")
        return real(*given)

    monkeypatch.setattr("bilateral.sweeps.evaluate", edited)
    assert main(own) == 2
    error = capsys.readouterr().err
    assert error.endswith("b/seed0: your own code has changed; start the sweep again\n")
    assert not Path("out/sweep.json").exists()


def test_what_an_older_version_left_is_read(own, tmp_path, capsys):
    """It wrote neither the attack's settings nor the network's digest: nothing is compared."""
    path = tmp_path / "out" / "a" / "seed0" / "trial.json"
    told = json.loads(path.read_text())
    del told["judging"]["settings"], told["trials"][0]["code_digest"]
    told["trials"][0]["versions"]["commit"] = "abc1234"
    path.write_text(json.dumps(told))
    edit("own.py", "return images", STRONGER)
    edit("network.py", "Flatten()", "Flatten(), torch.nn.Identity()")
    assert main([*own, "--minutes", "0"]) == 0
    found = {trial["name"]: trial for trial in trials(tmp_path)}
    assert found["a/seed0"] == {**told["trials"][0], "code_digest": ""}


def test_a_trial_names_the_commit_it_was_trained_at_and_that_it_was_judged_at(
    own, tmp_path, monkeypatch
):
    path = tmp_path / "out" / "a" / "seed0" / "trial.json"
    path.write_text(re.sub(r'"commit": ".*?"', '"commit": "abc1234"', path.read_text()))
    for number, (now, expected) in enumerate(
        (
            ("def5678", "abc1234 and def5678"),
            ("def5678", "abc1234 and def5678"),
            ("abc1234", "def5678 and abc1234"),
        )
    ):
        monkeypatch.setattr("bilateral.sweeps.commit", lambda now=now: now)
        edit("own.py", "def attack", f"x = {number}\ndef attack")
        assert main(own) == 0
        found = {trial["name"]: trial for trial in trials(tmp_path)}
        assert found["a/seed0"]["versions"]["commit"] == expected
        assert found["a/seed0"]["versions"]["device"] == "cpu"
    page = ranking_page(tmp_path / "out" / "sweep.json")
    assert "commit def5678 and abc1234; `" in page, "each once"


def test_a_default_that_changed_is_another_setting(swept, tmp_path, capsys):
    """A digest leaves out what has its default, so it is the same before and after."""
    shutil.copytree(swept / "out", tmp_path / "out")
    (tmp_path / "small.toml").write_text(SMALL)
    config = tmp_path / "out" / "target-none" / "seed0" / "config.json"
    stored = json.loads(config.read_text())
    assert stored["run"]["optimiser"]["momentum"] == 0.9
    stored["run"]["optimiser"]["momentum"] = 0.5
    config.write_text(json.dumps(stored))
    assert main(["sweep", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert (
        "target-none/seed0 was trained with other settings (optimiser.momentum: 0.5 -> 0.9): "
        in (error)
    )


def test_early_readings_are_compared_at_one_budget_and_schedule():
    run = recipe_named("cifar10-r-mc-la")
    assert alike(run, run.with_fields(seed=3, model="preact-resnet-18"))
    wider = run.with_paths({"adversary.epsilon": "16/255"})
    assert not alike(run, wider) and not alike(run, run.with_fields(epochs=30))
    assert not alike(run, run.with_paths({"optimiser.schedule": "triangular"}))
    assert not alike(run, run.with_paths({"optimiser.last_share": 0.5}))
    held_out = run.with_paths({"data.held_out": 2000})
    assert alike(run, held_out), "250 images are read of either"
    assert not alike(held_out, held_out.with_fields(keep="best"))


def test_a_run_that_failed_is_tried_again(tmp_path, monkeypatch, capsys):
    """Out of memory, say: the message says what to change, and the same command goes on."""
    (tmp_path / "small.toml").write_text(SMALL)
    words = ["sweep", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out")]

    def fails(*_):
        raise TrainingError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("bilateral.sweeps.train", fails)
        assert main(words) == 0
    assert {trial["status"] for trial in trials(tmp_path)} == {"out of memory"}
    assert main(words) == 0
    assert {trial["status"] for trial in trials(tmp_path)} == {"done"}
