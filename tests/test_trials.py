"""Trials as tables: ranked, over seeds, side by side, and what each choice brings."""

import json
from dataclasses import asdict

from bilateral.trials import (
    Trial,
    both_versions,
    crossed,
    effects,
    means,
    ranked,
    ranking,
    stored_trial,
)


def test_ranking_puts_the_judged_before_the_dropped():
    judged = Trial("a", {}, "done", 0.9, 0.3, (0.2, 0.4), 100, 12.0, {5: 0.4, 10: 0.4, 15: 0.35})
    better = Trial("b", {}, "done", 0.8, 0.5, (0.4, 0.6), 100, 10.0)
    dropped = Trial("c", {}, "dropped after epoch 3: ...", early={3: 0.9})
    order = ranked([dropped, judged, better])
    assert [trial.name for trial in order] == ["b", "a", "c"]
    head, lines = ranking(order, "apgd")
    assert head[1] == "apgd (%)" and lines[0][:4] == ["b", "50.0", "40.0 to 60.0", "80.0"]
    assert lines[2][2] == "dropped after epoch 3: ..."
    assert head[-2:] == ["highest reading (epoch), last (%)", "training (s)"]
    assert [line[-2:] for line in lines] == [
        ["", "10"],
        ["40.0 (10), 35.0", "12"],
        ["90.0 (3), 90.0", "0"],
    ]
    assert all(len(line) == len(head) for line in lines)


def test_means_over_seeds():
    trials = [
        Trial(f"x/seed{seed}", {}, "done", 0.9, robust, (0.0, 1.0))
        for seed, robust in enumerate([0.4, 0.5])
    ]
    assert means(trials, "apgd")[1] == [["x", "45.0", "10.0", "2"]]


def of(start, labels, robust, seed=0, also=None, status="done"):
    name = f"{start}-{labels}/seed{seed}"
    chosen = {"start": start, "labels": labels}
    found = {"at 4": also} if also is not None else {}
    return Trial(name, {}, status, 0.9, robust, (0.0, 1.0), chosen=chosen, also=found)


AXES = {"start": ["random", "wide"], "labels": ["one-hot", "soft", "softer"]}
GRID = [
    of("random", "one-hot", 0.40, also=0.6),
    of("random", "soft", 0.42),
    of("random", "soft", 0.46, seed=1),
    of("wide", "one-hot", 0.45, also=0.5),
    of("wide", "soft", 0.44, also=0.7),
    of("wide", "softer", None, status="dropped after epoch 3: ..."),
][::-1]  # in no order of the axes


def test_one_axis_stands_side_by_side():
    head, lines = crossed(GRID, AXES, "labels")
    assert head == ["start", "one-hot", "soft", "softer"]
    assert lines == [
        ["random", "40.0", "44.0 (42.0 to 46.0)", "-"],
        ["wide", "45.0", "44.0", "dropped"],
    ]
    head, lines = crossed(GRID, AXES, "start", "at 4")
    assert head == ["labels", "random", "wide"]
    assert lines[0] == ["one-hot", "60.0", "50.0"] and lines[1] == ["soft", "-", "70.0"]


def test_a_line_of_which_nothing_is_measured_is_left_out():
    axes = {"start": [*AXES["start"], "wider"], "labels": AXES["labels"]}
    assert crossed(GRID, axes, "labels") == crossed(GRID, AXES, "labels")


def test_what_a_choice_brings_is_told_by_pairs_of_one_seed():
    """Written out: soft beside one-hot is +2 from the random start and -1 from the wide one."""
    head, lines = effects(GRID, AXES, "labels")
    assert head[0] == "labels, beside one-hot"
    assert lines == [["soft", "+0.5", "-1.0 to +2.0", "1 of 2"]], "softer has no pair"
    _, lines = effects(GRID, AXES, "start")
    assert lines == [["wide", "+3.5", "+2.0 to +5.0", "2 of 2"]]
    _, lines = effects(GRID, AXES, "start", "at 4")
    assert lines == [["wide", "-10.0", "-10.0 to -10.0", "0 of 1"]]


def test_a_mean_of_nearly_nothing_has_no_sign_of_loss():
    pair = [of("random", "one-hot", 0.5000), of("wide", "one-hot", 0.4996)]
    _, lines = effects(pair, AXES, "start")
    assert lines[0][1] == "+0.0"


def test_a_trial_survives_json():
    trial = Trial("a", {"x": 1}, "done", 0.9, 0.3, early={3: 0.5}, chosen={"start": "wide"})
    found = stored_trial(json.loads(json.dumps(asdict(trial))))
    assert found == trial and found.early == {3: 0.5}


def test_versions_are_joined_with_the_newer_last_and_none_twice():
    now = {"commit": "b", "device": "cpu"}
    assert both_versions({}, now) == now
    assert both_versions({"commit": "a", "device": "cpu"}, now) == {
        "commit": "a and b",
        "device": "cpu",
    }
    assert both_versions({"commit": "b and a", "device": "a GPU"}, now) == {
        "commit": "a and b",
        "device": "a GPU and cpu",
    }
