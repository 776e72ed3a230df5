"""What is recorded of a measurement, held against sums done by hand."""

import pytest
from pydantic import ValidationError

from bilateral.results import (
    EvaluationFile,
    MemberFlags,
    summarise,
    summarise_members,
    wilson_interval,
)


def evaluation(labels, clean, attacks, **fields):
    """An entry for images 0, 1, ...; `attacks` are robust flags by name."""
    numbers = range(len(labels))
    summaries = {
        name: summarise_members({name: MemberFlags(images=list(numbers), robust=flags)}, numbers)
        for name, flags in attacks.items()
    }
    given = {"epsilon": 0.1, "epsilon_text": "0.1", "data": "digits", "data_digest": "", **fields}
    return summarise(
        **given,
        search="float32",
        classes=["a", "b", "c"],
        labels=labels,
        predictions=clean,
        attacks=summaries,
        weights_digest="",
        versions={},
    )


def test_intervals_do_not_leave_zero_and_one():
    """By rounding alone some would, and a share below nothing is refused on reading."""
    for images in range(1, 400):
        assert wilson_interval(0, images)[0] >= 0 and wilson_interval(images, images)[1] <= 1


@pytest.mark.parametrize(
    "fields",
    [
        {"images": [3, 3], "robust": [True, False]},
        {"images": [3, 4], "robust": [True]},
        {"images": [3, 4], "robust": []},
        {"images": [3, 4], "robust": [True, False], "predictions": [1]},
        {"images": [3, 4], "robust": [True, False], "distances": [0.5]},
    ],
)
def test_flags_that_do_not_belong_to_images_are_refused(fields):
    with pytest.raises(ValidationError, match=r"occurs twice|another length"):
        MemberFlags(**fields)


def test_the_cost_of_forgotten_images_is_forgotten():
    flags = MemberFlags()
    flags.add([1, 2, 3], [True] * 3, [0, 1, 2], [0.1, None, 0.3], 6.0, 30, 12)
    flags.add([4], [False], [5], [0.4], 2.0, 10, 4)
    assert (flags.seconds, flags.forwards, flags.backwards) == (8.0, 40, 16)
    flags.keep({3, 4, 9})
    assert (flags.images, flags.robust) == ([3, 4], [True, False])
    assert (flags.predictions, flags.distances) == ([2, 5], [0.3, 0.4])
    assert (flags.seconds, flags.forwards, flags.backwards) == (4.0, 20, 8)


def test_an_ensembles_line_member_by_member():
    """The second one tried the survivors of the first on eight images, of which five are asked."""
    first = MemberFlags(
        images=list(range(8)), robust=[True] * 6 + [False] * 2, seconds=8, forwards=80, backwards=40
    )
    second = MemberFlags(
        images=list(range(6)), robust=[True, False] * 3, seconds=6, forwards=60, backwards=30
    )
    found = summarise_members({"first": first, "second": second}, [0, 1, 2, 3, 7])
    assert found.robust == [True, False, True, False, False]
    assert found.members == {"first": 4 / 5, "second": 2 / 5}
    assert (found.accuracy, found.images) == (0.4, 5)
    assert found.interval == wilson_interval(2, 5)
    assert found.seconds == pytest.approx(8 * 5 / 8 + 6 * 4 / 6)
    assert (found.forwards, found.backwards) == (50 + 40, 25 + 20)


def test_what_one_member_broke_no_later_one_mends():
    first = MemberFlags(images=[0, 1], robust=[False, True])
    second = MemberFlags(images=[0, 1], robust=[True, True])
    assert summarise_members({"a": first, "b": second}, [0, 1]).robust == [False, True]


def test_distances_of_the_smallest_perturbations():
    """Wrong without one, at a radius itself, beyond it, and never fooled."""
    flags = MemberFlags(
        images=[0, 1, 2, 3], robust=[False, False, True, True], distances=[0.0, 0.5, 1.2, None]
    )
    found = summarise_members({"cw-l2": flags}, range(4))
    assert found.mean_distance == pytest.approx((0.5 + 1.2) / 2), "of perturbations that are one"
    at = {"0.25": 3 / 4, "0.5": 2 / 4, "1": 2 / 4, "1.5": 1 / 4, "2": 1 / 4}
    assert found.accuracy_at_radius == at, "what lies on the radius is within it"
    assert summarise_members({"pgd": MemberFlags(images=[0], robust=[True])}, [0]).members == {}


def test_the_worst_case_is_over_all_attacks_and_the_clean_image():
    labels, clean = [0, 0, 1, 1, 1], [0, 2, 1, 1, 1]
    attacks = {"one": [True, True, False, True, True], "two": [True, True, True, False, True]}
    found = evaluation(labels, clean, attacks)
    assert found.clean_accuracy == 4 / 5 and found.worst_case_accuracy == 2 / 5
    assert found.clean_interval == wilson_interval(4, 5)
    assert found.worst_case_interval == wilson_interval(2, 5)
    rows = [(r.name, r.images, r.clean_accuracy, r.worst_case_accuracy) for r in found.per_class]
    assert rows == [("a", 2, 1 / 2, 1 / 2), ("b", 3, 1, 1 / 3)], "nothing of a class without images"


def test_an_entry_takes_the_place_of_the_same_measurement_alone():
    file = EvaluationFile(schema=1)
    kinds = [{}, {"data": "svhn"}, {"epsilon_text": "0.2"}]
    for kind in kinds:
        file.put(evaluation([0, 1], [0, 1], {"one": [True, True]}, **kind))
    file.put(evaluation([0, 1, 1], [0, 1, 1], {"one": [True, True, True]}))
    assert len(file.entries) == 4
    again = evaluation([0, 1], [0, 1], {"one": [False, True]})
    file.put(again)
    assert len(file.entries) == 4 and file.find(again) is again
    assert [entry.worst_case_accuracy for entry in file.entries] == [1, 1, 1, 0.5]
