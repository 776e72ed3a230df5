"""Accuracies in `results/` become tables that say what they are of."""

import pytest

from bilateral.paper.rendering import (
    diagnosis_table,
    guard_table,
    origins,
    parity_table,
    readings_table,
    results_table,
    variants_table,
)

ROW = {
    "recipe": "cifar10-r-mc-la",
    "model": "preact-resnet-18",
    "seeds": [0, 1],
    "epochs": 30,
    "clean_accuracy": 0.75,
    "attacks": {"pgd20": {"accuracy": 0.5, "images": 1000}},
    "paper": {"network": "wrn-28-10", "epochs": 100, "clean": 0.907, "pgd20": 0.553},
    "train_seconds": 1234.4,
    "device": "a GPU",
    "commit": "abc",
    "command": "bilateral train x",
}
PARITY = {
    "recipe": "a",
    "model": "b",
    "peer": "pyautoattack",
    "images": 1000,
    "device": "d",
    "commit": "e",
    "command": "bilateral bench",
    "accuracy": None,
    "peer_accuracy": None,
    "mean_distance": None,
    "peer_mean_distance": None,
    "found": None,
    "peer_found": None,
}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_results_table_puts_the_paper_below_and_keeps_autoattacks_place():
    lines = results_table([ROW, {**ROW, "paper": {}, "note": "again"}]).splitlines()
    assert lines[0].split(" | ")[3:6] == ["clean", "pgd20", "autoattack"]
    assert lines[2] == (
        "| `cifar10-r-mc-la` | preact-resnet-18 | 30 | 75.0 | 50.0 | - | 1,000 | 1,234 |"
    )
    assert lines[3] == "| as printed in the paper | wrn-28-10 | 100 | 90.7 | 55.3 | - |  |  |"
    assert lines[4] == lines[2] and lines[5] == ""
    assert "a GPU, commit abc, seeds 0, 1" in lines[6] and "`bilateral train x`" in lines[6]
    assert lines[7].endswith("Note: again.")
    measured = {**ROW, "attacks": {"autoattack": {"accuracy": 0.25, "images": 1000}}}
    assert "| 25.0 | 1,000 |" in results_table([measured])


def test_an_attack_on_fewer_images_says_so():
    attacks = {
        "pgd20": {"accuracy": 0.5, "images": 1000},
        "apgd": {"accuracy": 0.25, "images": 200},
    }
    line = results_table([{**ROW, "attacks": attacks}]).splitlines()[2]
    assert "| 75.0 | 50.0 | 25.0 (200) | - | 1,000 |" in line
    for count, clean in ((20, "75.0 (20)"), (1000, "75.0")):
        line = results_table([{**ROW, "clean_images": count}]).splitlines()[2]
        assert f"| {clean} | 50.0 | - | 1,000 |" in line


def test_parity_table_compares_distances_or_accuracies():
    rows = [
        {**PARITY, "attack": "apgd", "accuracy": 0.25, "peer_accuracy": 0.255},
        {**PARITY, "attack": "cw-l2", "mean_distance": 1.5, "peer_mean_distance": 1.25}
        | {"found": 999, "peer_found": 1000, "peer": "foolbox"},
        {**PARITY, "attack": "deepfool-l2", "images": None, "note": "too slow"},
    ]
    lines = parity_table(rows).splitlines()
    assert (
        lines[2] == "| `a` | apgd | accuracy (%) | 25.0 | 25.5 | pyautoattack | 1,000 | - | met |"
    )
    assert lines[3] == (
        "| `a` | cw-l2 | mean L2 distance | 1.5000 | 1.2500 | foolbox | 1,000 | 999 / 1,000 "
        "| missed |"
    )
    assert lines[4] == "| `a` | deepfool-l2 | not measured | - | - | pyautoattack | - | - | - |"
    assert lines[5:] == [
        "",
        "- `a`, b: d, commit e; `bilateral bench`.",
        "- `a`, b: d, commit e; `bilateral bench`. Note: too slow.",
    ]


def test_models_of_one_recipe_trained_at_two_commits_are_told_apart():
    figures = {"accuracy": 0.25, "peer_accuracy": 0.25}
    rows = [{**PARITY, **figures, "attack": name, "commit": name} for name in ("one", "two")]
    rows.append({**PARITY, **figures, "attack": "three", "recipe": "other"})
    first, second, third = parity_table(rows).splitlines()[2:5]
    assert first.startswith("| `a`, trained at one |")
    assert second.startswith("| `a`, trained at two |") and third.startswith("| `other` |")


@pytest.mark.parametrize(
    ("figures", "aim"),
    [
        ({"accuracy": 0.323, "peer_accuracy": 0.32}, "met"),
        ({"accuracy": 0.324, "peer_accuracy": 0.32}, "missed"),
        ({"accuracy": 0.1, "peer_accuracy": 0.32}, "met"),
        ({"mean_distance": 1.02, "peer_mean_distance": 1.0}, "met"),
        ({"mean_distance": 1.03, "peer_mean_distance": 1.0}, "missed"),
        # of 1,000 images the interval of 38.3 % begins at 35.3
        ({"accuracy": 0.33, "peer_accuracy": 0.383, "peer": "foolbox"}, "met"),
        ({"accuracy": 0.31, "peer_accuracy": 0.383, "peer": "foolbox"}, "missed"),
        ({"accuracy": 0.45, "peer_accuracy": 0.383, "peer": "foolbox"}, "missed"),
        ({}, "-"),
    ],
)
def test_aims_of_parity(figures, aim):
    line = parity_table([{**PARITY, "attack": "x", **figures}]).splitlines()[2]
    assert cells(line)[-1] == aim


def test_variants_show_the_mean_and_every_seed():
    row = {**ROW, "variant": "fast", "by_seed": {"clean": [0.7, 0.8], "pgd20": [0.5]}}
    lines = variants_table([row, {**row, "variant": "slow"}]).splitlines()
    assert lines[0] == "| variant | epochs | clean | pgd20 | images |"
    assert lines[2] == "| fast | 30 | 75.00 (70.00, 80.00) | 50.00 | 1,000 |"
    assert lines[-1] == "- fast; slow: a GPU, commit abc, seeds 0, 1; `bilateral train x`."


def test_a_diagnosis_tells_what_was_not_kept_from_what_could_not_be_made():
    row = {**ROW, "title": "good", "verdict": "holds", "images": 1500}
    row["accuracies"] = {"clean": 0.98, "apgd": 0.0}
    row["readings"] = {"zero-gradients": 0.0, "saturated-logits": 4420.0, "loss-gap": -0.025}
    other = {**row, "title": "bad", "verdict": "masked", "accuracies": {"fgsm": 0.5}}
    other["readings"] = {"zero-gradients": None, "binarization": 1.0}
    lines = diagnosis_table([row, other]).splitlines()
    assert lines[0] == (
        "| model | verdict | images | clean (%) | apgd (%) | fgsm (%) "
        "| zero-gradients | saturated-logits | loss-gap | binarization |"
    )
    assert lines[2] == "| good | `holds` | 1,500 | 98.0 | 0.0 | - | 0 | 4.42e+03 | -0.025 | - |"
    assert lines[3] == "| bad | `masked` | 1,500 | - | - | 50.0 | none | - | - | 1 |"
    assert lines[5].startswith("- good; bad: ")


def test_rows_measured_in_the_same_way_share_a_line():
    rows = [
        {**ROW, "title": "one"},
        {**ROW, "title": "two", "jobs": 3},
        {**ROW, "title": "three"},
        {**ROW, "title": "one"},
    ]
    assert origins(rows, lambda row: row["title"]) == [
        "- one; three: a GPU, commit abc, seeds 0, 1; `bilateral train x`.",
        "- two: a GPU, commit abc, seeds 0, 1, 3 models at once on the device; "
        "`bilateral train x`.",
    ]
    assert origins([], str) == []
    many = [{**ROW, "title": title} for title in "abcdefghi"]
    assert origins(many[:8], lambda row: row["title"])[0].startswith("- a; b; c; d; e; f; g; h: a")
    assert origins(many, lambda row: row["title"])[0].startswith("- a; ...; i (9 rows): a GPU")


def test_commands_that_differ_in_their_rows_are_one():
    def commands(*words):
        rows = [{**ROW, "title": str(place), "command": one} for place, one in enumerate(words)]
        return [line.rpartition("; ")[2] for line in origins(rows, lambda row: row["title"])]

    table = "bilateral reproduce budget"
    assert commands(
        f"{table} --rows 'R-MC-LA (eps 8)' --epochs 30",
        f"{table} --rows Madry* R-MC --epochs 30",
        f"{table} --rows 'R-MC-LA (eps 8)' --epochs 30",
        f"{table} --rows R-MC --epochs 100",
        f"{table} --epochs 30",
    ) == [
        f"`{table} --rows 'R-MC-LA (eps 8)' Madry* R-MC --epochs 30`.",
        f"`{table} --rows R-MC --epochs 100`.",
        f"`{table} --epochs 30`.",
    ]
    both = [f"{table} --rows {row} && {table} --rows {row} --seeds 3" for row in ("one", "two")]
    assert commands(*both) == [f"`{one}`." for one in both]


def test_the_guards_runs_are_told_with_their_last_reading():
    run = {"variant": "x --seed 1", "guard": "watch", "epochs": 30, "alarms": 0, "model": "net"}
    run |= {"first_alarm_epoch": None, "last_alignment": 0.956, "device": "a GPU", "commit": "abc"}
    run["last_check"] = {"clean": 0.9, "fgsm": 0.55, "pgd10": 0.401}
    fallen = {**run, "alarms": 8, "first_alarm_epoch": 23}
    lines = guard_table([run, fallen]).splitlines()
    assert lines[2] == "| `x --seed 1` | `watch` | 30 | 0 | - | 90.0 | 55.0 | 40.1 | 0.96 |"
    assert "| 8 | 23 |" in lines[3]
    assert lines[5] == "- a GPU, commit abc; `bilateral train RUN --model net --epochs N`."


def test_readings_are_shown_from_the_last_third_on_with_what_was_left():
    one = {"adversarial_accuracy": 0.882, "clean": 0.9, "fgsm": 0.884, "pgd10": 0.6}
    readings = [{**one, "epoch": epoch, "alignment": 0.296} for epoch in (10, 20, 30)]
    left = {"of": "test", "images": 10_000, "accuracy": {"clean": 0.916, "apgd": 0.195}}
    run = {"title": "`x`", "epochs": 30, "readings": readings, "read": "held-out", "left": left}
    run |= {"device": "a GPU", "commit": "abc", "command": "bilateral train x"}
    lines = readings_table([run]).splitlines()
    assert lines[2:4] == ["| `x` | 30 of 30 | 88.2 | held-out | 88.4 | 60.0 | 0.30 |", ""]
    left_of = "- `x`, 10,000 test images: clean 91.6, apgd 19.5 %"
    assert lines[4:] == [f"{left_of}: a GPU, commit abc; `bilateral train x`."]
