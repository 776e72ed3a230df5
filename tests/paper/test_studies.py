"""Studies: their files plan what they say, and their pages show what a sweep wrote."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bilateral.commands.sweep import read_plan, runs_of
from bilateral.errors import UserError
from bilateral.paper.studies import NOT_MEASURED, crossed_page, ranking_page
from bilateral.training.step import forwards_per_image
from bilateral.trials import Trial

STUDIES = Path(__file__).parents[2] / "studies"


def planned(name):
    return {key: one.run for key, one in runs_of(read_plan(STUDIES / f"{name}.toml"))}


def test_the_halves_are_every_target_label_and_start_at_two_budgets():
    runs = planned("halves").values()
    assert len(runs) == len(set(runs_seen(runs))) == 4 * 5 * 2 * 2
    assert {run.labels.rule for run in runs} == {"one-hot", "smoothing", "adversarial"}
    assert {round(run.adversary.step_size * 255, 6) for run in runs} == {4, 8}


def runs_seen(runs):
    return [
        (run.adversary.model_dump_json(), run.labels.model_dump_json(), run.epochs) for run in runs
    ]


@pytest.mark.parametrize(
    ("study", "cost"),
    [
        *(("strong", 120), ("fast", 300), ("lasting", 525), ("longest", 1050)),
        *(("turned", 360), ("minute", 240)),
    ],
)
def test_every_candidate_costs_at_most_eight_passes_and_as_much_as_the_others(study, cost):
    for name, run in planned(study).items():
        passes = forwards_per_image(run)
        assert passes <= 8, name
        # An epoch more or less, or a hundredth: readings fall on multiples of five epochs.
        assert cost - max(passes, cost / 100) < run.epochs * passes <= cost + 2, name
        if study in ("turned", "minute"):
            assert run.images_judging == 3000
        else:
            assert run.images_judging == (
                1000 if run.data.held_out == 1000 or run.keep == "best" else 2000
            )


def written(tmp_path):
    trials = [
        Trial(
            "none-hard/seed0", {}, "done", 0.9, 0.4, (0.35, 0.45), 100, 12.0, also={"4/255": 0.6}
        ),
        Trial("mc-hard/seed0", {}, "done", 0.9, 0.3, (0.25, 0.35), 2000, 12.0, also={"4/255": 0.5}),
        Trial("mc-soft/seed0", {}, "dropped after epoch 5: ...", early={5: 0.1}),
    ]
    for trial in trials:
        target, labels = trial.name.partition("/")[0].split("-")
        trial.chosen = {"target": target, "labels": labels}
        trial.versions = {"device": "a GPU", "commit": "abc1234"}
    plan = {"command": "bilateral sweep x.toml", "jobs": 8, "recipe": "cifar10-r-mc"}
    plan |= {"fields": {"check_epochs": 5}}
    plan |= {"axes": {"target": ["none", "mc"], "labels": ["hard", "soft"]}}
    judging = {"attacks": "apgd", "epsilon": 8 / 255, "also": [4 / 255]}
    rows = [asdict(trial) for trial in trials]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema": 1, "judging": judging, "plan": plan, "trials": rows}))
    return path


def test_the_ranking_shows_the_dropped_too(tmp_path):
    page = ranking_page(written(tmp_path))
    first, second, third = page.splitlines()[2:5]
    assert first.startswith("| none-hard/seed0 | 40.0 | 35.0 to 45.0 | 60.0 |")
    assert second.startswith("| mc-hard/seed0 |") and "dropped after epoch 5" in third
    assert page.endswith(
        "- 3 runs of `cifar10-r-mc --check-epochs 5`, judged on 100 or 2,000 held-out images: a "
        "GPU, commit abc1234, 8 models at once on the device; `bilateral sweep x.toml`."
    )


def test_labels_stand_side_by_side_at_both_budgets(tmp_path):
    page = crossed_page(written(tmp_path))
    assert "at 8/255:\n\n| target | hard | soft |\n" in page
    assert "| none | 40.0 | - |\n| mc | 30.0 | dropped |" in page
    assert "| none | 60.0 | - |\n| mc | 50.0 | - |" in page.replace("dropped", "-")
    assert "| target, beside none |" in page and "| mc | -10.0 | -10.0 to -10.0 | 0 of 1 |" in page
    assert "labels, beside hard" not in page, "nothing can be said of what was dropped"


def test_without_a_file_nothing_is_said(tmp_path):
    assert (
        ranking_page(tmp_path / "none.json") == crossed_page(tmp_path / "no.json") == NOT_MEASURED
    )


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "x.json").write_text('{"trials": 3}')
    with pytest.raises(UserError, match=r"x\.json is not a sweep"):
        ranking_page(tmp_path / "x.json")
