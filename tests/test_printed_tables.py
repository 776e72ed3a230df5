"""Tables say what an attack measures: an accuracy inside the ball, or a smallest length."""

import pytest

from bilateral.results import AttackSummary, Evaluation
from bilateral.tables import bench_table, evaluation_table, rate, render

SUMMARY = AttackSummary(
    accuracy=0.5, interval=(0.3, 0.7), images=20, seconds=1.0, forwards=1, backwards=1
)
ENTRY = Evaluation(
    epsilon=8 / 255,
    epsilon_text="8/255",
    images=20,
    data="digits",
    data_digest="",
    search="float32",
    clean_accuracy=0.9,
    clean_interval=(0.8, 0.95),
    attacks={"pgd20": SUMMARY},
    worst_case_accuracy=0.5,
    worst_case_interval=(0.3, 0.7),
    per_class=[],
    weights_digest="",
    versions={},
)
BENCH = {
    "seconds": 2.0,
    "accuracy": 0.94,
    "peer": "foolbox",
    "peer_seconds": 3.0,
    "peer_accuracy": 0.93,
    "ratio": 1.5,
}


def test_a_smallest_perturbation_is_told_by_its_length():
    assert "mean L2" not in evaluation_table(ENTRY)[0]
    shortest = SUMMARY.model_copy(update={"accuracy": 1.0, "mean_distance": 0.27714})
    attacks = {"pgd20": SUMMARY, "cw-l2": shortest}
    head, rows = evaluation_table(ENTRY.model_copy(update={"attacks": attacks}))
    at = head.index("mean L2")
    assert [(row[0], row[at]) for row in rows] == [
        ("clean", ""),
        ("pgd20 at 8/255", ""),
        ("cw-l2 at 8/255", "0.277"),
        ("worst case", ""),
    ]
    assert max(map(len, render((head, rows)).splitlines())) <= 80


def test_lengths_stand_beside_the_peers():
    plain = {"pgd20": BENCH}
    assert bench_table(plain) == (
        ["attack", "seconds", "accuracy (%)", "peer", "seconds", "accuracy (%)", "ratio"],
        [["pgd20", "2.0", "94.0", "foolbox", "3.0", "93.0", "1.50"]],
    )
    lengths = {"mean_distance": 1.25, "peer_mean_distance": 1.5, "peer_accuracy": None}
    head, rows = bench_table({**plain, "cw-l2": {**BENCH, **lengths}})
    assert [column for column, name in enumerate(head) if name == "mean L2"] == [3, 7]
    assert rows == [
        ["pgd20", "2.0", "94.0", "", "foolbox", "3.0", "93.0", "", "1.50"],
        ["cw-l2", "2.0", "94.0", "1.250", "foolbox", "3.0", "", "1.500", "1.50"],
    ]


@pytest.mark.parametrize(
    ("tflops", "text"),
    [(717.46, "717.5"), (1234.0, "1234.0"), (9.876, "9.88"), (0.00264, "0.00264")],
)
def test_a_slow_machine_has_a_rate_too(tflops, text):
    assert rate(tflops) == text
