"""The run folder: whole writes, a log cut back to the checkpoint, configurations compared."""

import json

import pytest

from bilateral.config import Run
from bilateral.errors import UserError
from bilateral.runs import RunFolder, write_atomic


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"before")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        folder.append_log({"epoch": epoch})
    with folder.log.open("a") as file:
        file.write('{"epoch": 4, "lo')  # killed while writing
    folder.cut_log(2)
    assert [json.loads(line)["epoch"] for line in folder.log.read_text().splitlines()] == [1, 2]
    with folder.log.open("a") as file:
        file.write('{"epoch": 2}')  # whole, but its line was not ended
    folder.cut_log(2)
    assert folder.log.read_text().count("\n") == 2
    RunFolder(tmp_path / "none").cut_log(3)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("third", "kept"),
    [({}, 3), ({"guard": {"discarded": True}}, 2), ({"kept": False, "guard": {}}, 3)],
)
def test_the_last_epoch_that_made_the_weights(tmp_path, third, kept):
    folder = RunFolder(tmp_path)
    assert folder.kept_record() == {}
    for record in ({"epoch": 1}, {"epoch": 2, "guard": None}, {"epoch": 3, **third}):
        folder.append_log(record)
    assert folder.kept_record()["epoch"] == kept
    folder.append_log({"epoch": 4, "kept": True})
    folder.append_log({"epoch": 5, "kept": False})
    assert folder.kept_record()["epoch"] == 4


def test_attack_files_have_safe_names(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.attack("pgd20", "8/255").name == "pgd20@8-255.json"
    own = folder.attack("../evil/mine.py:attack", "8/255")
    assert own.parent == tmp_path / "attacks" and "/" not in own.name


def test_how_often_checkpoints_are_written_is_no_difference(tmp_path):
    folder = RunFolder(tmp_path)
    folder.prepare(Run(), {})
    folder.prepare(Run(checkpoint_seconds=1.0), {})
    with pytest.raises(UserError, match="seed: 0 -> 1"):
        folder.prepare(Run(seed=1), {})
