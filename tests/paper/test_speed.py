"""Times and rates become tables, and an aim is met only by what counts."""

import subprocess
import sys

import pytest

from bilateral.paper.speed import aims_table, speed_table, training_speed_table

ATTACK = {"images": 100, "seconds": 2.0, "accuracy": 0.5, "peer": "foolbox"}
ATTACK |= {"peer_seconds": 3.0, "peer_accuracy": 0.25, "peer_batch_size": 50, "ratio": 1.5}
EVALUATION = {"recipe": "a", "model": "b", "device": "a GPU", "commit": "e", "command": "f"}
EVALUATION |= {"warm_up_seconds": 9.0, "search": "bfloat16", "attacks": {"pgd20": ATTACK}}
RATES = {"images_per_second": 6038.47, "epoch_seconds": 8.28, "tflops": 379.9}
RATES |= {"share_of_matrix_rate": 0.53, "first_step_seconds": 48.5}
TRAINING = {"recipe": "cifar10-r-mc-la", "model": "wrn-28-10", "batch_size": 128, "device": "H"}
TRAINING |= {"commit": "e", "command": "f", "images_per_second": 6038.47, "features": {}}


def cells(table, line=2):
    return [cell.strip() for cell in table.splitlines()[line].strip("|").split("|")]


def variant(batch_size, clean, pgd20, model="wrn-28-10"):
    return {
        "model": model,
        "variant": f"clean {clean}",
        "batch_size": batch_size,
        "by_seed": {"clean": [clean - 0.001, clean + 0.001], "pgd20": [pgd20]},
    }


def test_speed_table_tells_the_warm_up_apart():
    assert speed_table([EVALUATION]).splitlines()[2] == (
        "| `a` | pgd20 | 100 | 2.0 | 50.0 | foolbox | 3.0 (batch 50) | 25.0 | 1.50 | 9.0 | a GPU |"
    )


def test_training_speed_has_a_row_a_feature():
    spread = {**RATES, "slowest_round": 5435.1, "fastest_round": 6198.8}
    features = {"all": spread, "without graphs": RATES}
    features |= {"without fused": None, "without compile": {"error": "out of memory"}}
    table = training_speed_table([{**TRAINING, "features": features}])
    assert cells(table) == [
        *("`wrn-28-10`", "128", "all", "6,038", "5,435 to 6,199"),
        *("8.28", "380", "53.0", "48.5"),
    ]
    assert cells(table, 3)[3:5] == ["6,038", "-"]
    assert cells(table, 4)[2:] == ["without fused", *"------"]
    assert cells(table, 5)[2:] == ["without compile", *"------"]
    assert table.splitlines()[-1] == "- `cifar10-r-mc-la`, wrn-28-10: H, commit e; `f`."


@pytest.mark.parametrize(
    ("device", "attack", "ratio", "accuracy", "reached"),
    [
        ("a GPU", "autoattack", 3.0, 0.36, "met"),
        ("a GPU", "autoattack", 2.99, 0.36, "missed"),
        ("a GPU", "autoattack", 9.0, 0.34, "does not count: under 35.0 % robust"),
        ("cpu: two cores", "autoattack", 1.5, 0.0, "met"),
        ("cpu: two cores", "autoattack", 1.49, 0.9, "missed"),
        ("cpu", "pgd20", 1.6, 0.0, "met"),
    ],
)
def test_aims_of_attacks(device, attack, ratio, accuracy, reached):
    file = {**EVALUATION, "device": device}
    file["attacks"] = {attack: {**ATTACK, "ratio": ratio, "accuracy": accuracy}}
    found = cells(aims_table([file], [], []))
    assert found[0] == f"{attack}, b, 100 images, search in bfloat16"
    assert f"{ratio:.2f} times as fast, leaving {100 * accuracy:.1f} and 25.0 %" in found[1]
    assert (
        found[1].startswith("2.0 s, foolbox 3.0 s: ") and "9.0 s of warm-up not counted" in found[1]
    )
    assert found[3:] == [reached, device.partition(":")[0], "e"]


def test_what_has_no_aim_is_not_in_the_table():
    cpu = {**TRAINING, "device": "cpu"}
    assert aims_table([], [cpu], []) == aims_table([], [], []), "the aims are a GPU's"
    other = {**TRAINING, "model": "resnet-50"}
    assert len(aims_table([EVALUATION], [other], []).splitlines()) == 2, "pgd20 on a GPU has none"


@pytest.mark.parametrize(
    ("rate", "reached"),
    [(5999, "missed; missed"), (6000, "met; missed"), (7500, "met; met")],
)
def test_aims_of_training(rate, reached):
    found = cells(aims_table([], [{**TRAINING, "images_per_second": rate}], []))
    assert found[0] == "training `cifar10-r-mc-la`, wrn-28-10, batches of 128"
    assert found[1:] == [f"{rate:,} images a second", "6,000; better 7,500", reached, "H", "e"]


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ([], "whether batches of 512 learn as well was not measured"),
        ([variant(128, 0.8, 0.4)], "whether batches of 512 learn as well was not measured"),
        ([variant(512, 0.8, 0.4)], "whether batches of 512 learn as well was not measured"),
        (
            [variant(128, 0.8, 0.4), variant(512, 0.8, 0.4, "resnet-50")],
            "whether batches of 512 learn as well was not measured",
        ),
        (
            [variant(128, 0.8, 0.4), variant(512, 0.796, 0.396)],
            "learns as well as batches of 128: clean 0.796",
        ),
        (
            [variant(128, 0.8, 0.4), variant(512, 0.7, 0.3), variant(512, 0.81, 0.41)],
            "learns as well as batches of 128: clean 0.81, the best of 2 ways",
        ),
        (
            [variant(128, 0.8, 0.4), variant(512, 0.81, 0.39), variant(512, 0.7, 0.39)],
            "batches of 512 cost -1.0 points clean and 1.0 points pgd20 compared with 128",
        ),
    ],
)
def test_a_larger_batch_counts_only_if_it_learns_as_well(variants, said):
    found = cells(aims_table([], [{**TRAINING, "batch_size": 512}], variants))
    assert found[1] == f"6,038 images a second; {said}"
    counts = said.startswith("learns as")
    assert found[3] == ("met; missed" if counts else "does not count (met; missed)")


def test_a_bench_of_other_fields_than_the_recipes_says_them():
    """Training without an attack is no step towards an aim of the recipe's."""
    other = {**TRAINING, "fields": {"method": "undefended", "model": "wrn-28-10"}}
    line = training_speed_table([other]).splitlines()[-1]
    said = "`cifar10-r-mc-la` with method undefended"
    assert line == f"- {said}, wrn-28-10: H, commit e; `f`."
    table = aims_table([], [{**TRAINING, "fields": {}, "images_per_second": 9000}, other], [])
    assert len(table.splitlines()) == 4, "a measurement of its own, not the recipe's slowest"
    assert f"training {said}, wrn-28-10, batches of 128" in table


def test_of_several_measurements_the_slowest_counts():
    file = {"recipe": "cifar10-r-mc-la", "model": "wrn-28-10", "batch_size": 128}
    file |= {"device": "NVIDIA H200", "commit": "abc"}
    rates = (6_100, 5_900, 6_200)
    files = [file | {"images_per_second": rate} for rate in rates]
    slower = file | {"images_per_second": 900, "device": "a slower one"}
    table = aims_table([], [*files, slower], [])
    assert "900 images a second" in table
    assert "5,900 images a second" in table and "6,100" not in table and "6,200" not in table


def test_tables_of_measurements_need_no_torch():
    code = (
        "import sys, bilateral.paper.speed, bilateral.paper.pages; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
