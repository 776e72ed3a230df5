"""What an attack's file tells of an ensemble: all of it or nothing, and nothing of other images."""

import pytest

from bilateral.cli import main
from bilateral.evaluation.comparison import compare
from bilateral.results import AttackFile, EvaluationFile, MemberFlags
from bilateral.runs import RunFolder


def file_of(**members):
    """An ensemble's file; a member's flags by image."""
    return AttackFile(
        schema=1,
        attack="ensemble",
        settings={name: {} for name in members},
        epsilon=0.1,
        epsilon_text="0.1",
        data="digits",
        data_digest="d",
        search="float32",
        weights_digest="w",
        versions={},
        members={
            name: MemberFlags(images=list(flags), robust=list(flags.values()))
            for name, flags in members.items()
        },
    )


def test_broken_once_is_broken():
    """Whatever a later member says, which may have got its flag from another attack's file."""
    file = file_of(first={1: False, 2: True}, second={1: True, 2: True})
    file.compile()
    assert dict(zip(file.images, file.robust, strict=True)) == {1: False, 2: True}
    assert file.accuracy == 0.5


def test_nothing_is_told_while_an_ensemble_is_under_way():
    """Broken images are known first: an accuracy of those alone would be near zero."""
    file = file_of(first={1: False, 2: True, 3: True}, second={2: True})
    file.compile()
    assert file.accuracy is None and file.images == [] and file.robust == []
    assert file.settled() == {1: False, 2: True}
    file.members["second"].add([3], [False], [], [], 0.0, 0, 0)
    file.compile()
    assert file.accuracy == pytest.approx(1 / 3) and file.images == [1, 2, 3]


def test_flags_of_other_images_are_not_taken_over(digits_run, tmp_path):
    """An ensemble on few images after its members on many: its file is of the few."""
    out = tmp_path / "results"
    common = [str(digits_run.path), "--out", str(out), "--quiet", "--epsilon", "40/255"]
    assert main(["evaluate", *common, "--attacks", "apgd-t,apgd", "--images", "15"]) == 0
    assert main(["evaluate", *common, "--attacks", "autoattack", "--images", "5"]) == 0
    folder = RunFolder(out)
    entries = EvaluationFile.model_validate_json(folder.evaluation.read_bytes()).entries
    summary = next(entry for entry in entries if entry.images == 5).attacks["autoattack"]
    path = folder.attack("autoattack", "40/255")
    file = AttackFile.model_validate_json(path.read_bytes())
    assert len(file.images) == 5 and file.accuracy == pytest.approx(summary.accuracy)
    found = compare([str(out)], "autoattack", "40/255")
    assert found.images == 5 and found.mean_accuracy == pytest.approx(summary.accuracy)
