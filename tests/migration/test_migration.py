"""Files of the first release: they load, go on, and are told from damaged ones.

`first_release/` was written by commit a899400 and is never written again: an interrupted run, and a
finished one with everything that was measured of it.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from bilateral.cli import main
from bilateral.data.datasets import load
from bilateral.errors import UserError
from bilateral.evaluation.attack_files import evaluations
from bilateral.evaluation.diagnosis import Diagnosis
from bilateral.evaluation.transfer import Transfer
from bilateral.report.gather import gather
from bilateral.results import AttackFile
from bilateral.runs import RunFolder
from bilateral.training.checkpoint import read_checkpoint, write_checkpoint
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train
from bilateral.weights import read_about, read_weights, write_weights

OLD = Path(__file__).parent / "first_release"
CPU = torch.device("cpu")


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the old folders, and their network where it can be imported."""
    monkeypatch.syspath_prepend(str(OLD.parent))
    return Path(shutil.copytree(OLD, tmp_path / "runs"))


def test_the_files_are_those_of_the_first_release():
    """No digests yet: what is tested is not what this version writes."""
    assert (OLD / "interrupted" / "checkpoint.pt").read_bytes().endswith(b"\0\0")
    assert "sha256" not in read_about_raw(OLD / "finished" / "model.safetensors")
    assert "config_digest" not in (OLD / "finished" / "evaluation.json").read_text()
    assert sum(path.stat().st_size for path in OLD.rglob("*") if path.is_file()) < 50_000


def read_about_raw(path):
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header["__metadata__"]["bilateral"]


def test_an_interrupted_run_goes_on_to_the_same_weights(old, tmp_path):
    """From the old checkpoint's step, and to where a run of today comes, but for rounding."""
    folder = RunFolder(old / "interrupted")
    run = folder.read_run()
    assert read_checkpoint(folder.checkpoint, CPU)["step"] == 7
    digits, quiet = load("digits", "train"), TrainingProgress(quiet=True)
    first_epoch = folder.log.read_text().splitlines()[0]
    assert train(run, folder, digits, CPU, quiet)
    lines = folder.log.read_text().splitlines()
    assert lines[0] == first_epoch and [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    again = RunFolder(tmp_path / "again")
    train(run, again, digits, CPU, quiet)
    network = pytest.importorskip("first_release_network").network
    one, other = network(), network()
    read_weights(folder.weights, one)
    read_weights(again.weights, other)
    for name, value in one.state_dict().items():
        assert torch.allclose(value.float(), other.state_dict()[name].float(), atol=1e-4), name


def test_a_finished_run_is_evaluated_and_its_flags_are_used(old, monkeypatch, capsys):
    """What was measured then is not measured again, and new entries stand beside the old."""
    folder = RunFolder(old / "finished")
    flags = {
        path.name: json.loads(path.read_text()) for path in (folder.path / "attacks").iterdir()
    }
    words = ["evaluate", str(folder.path), "--images", "20", "--quiet", "--json"]
    assert main([*words, "--attacks", "fgsm,apgd-ce,pgd2"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert (
        set(entry["attacks"]) == {"fgsm", "apgd-ce", "pgd2"} and len(entry["config_digest"]) == 64
    )
    for name, before in flags.items():
        now = json.loads((folder.path / "attacks" / name).read_text())
        assert {key: now[key] for key in before} == before  # seconds too
    assert main(["report", str(folder.path), "--quiet"]) == 0


def test_every_old_result_is_still_understood(old):
    finished = old / "finished"
    folder = RunFolder(finished)
    assert [entry.images for entry in evaluations(folder).entries] == [20]
    for path in (finished / "attacks").iterdir():
        file = AttackFile.model_validate_json(path.read_bytes())
        assert file.format == 1 and len(file.robust) == 20
    diagnosis = Diagnosis.model_validate_json(folder.diagnostics.read_bytes())
    assert diagnosis.format == 1 and len(diagnosis.readings) > 10
    matrix = Transfer.model_validate_json((finished / "transfer" / "transfer.json").read_bytes())
    assert matrix.format == 1 and matrix.images == 20
    (files,) = gather([str(finished)])
    assert {gap.file for gap in files.gaps} == {"gallery.npz"}  # left out for its size


def test_another_schema_is_refused_and_not_guessed(old, tmp_path, capsys):
    """A newer file is named, and stays as it is."""
    folder = RunFolder(old / "finished")
    newer = json.loads(folder.evaluation.read_text()) | {"schema": 2}
    folder.evaluation.write_text(json.dumps(newer))
    words = ["evaluate", str(folder.path), "--images", "20", "--attacks", "fgsm", "--quiet"]
    assert main(words) == 2
    assert "evaluation.json is damaged: schema" in capsys.readouterr().err
    assert json.loads(folder.evaluation.read_text()) == newer
    state = read_checkpoint(old / "interrupted" / "checkpoint.pt", CPU)
    write_checkpoint(tmp_path / "newer.pt", state | {"schema": 99})
    with pytest.raises(UserError, match="not a checkpoint of this version"):
        read_checkpoint(tmp_path / "newer.pt", CPU)


def test_an_old_file_written_again_gets_its_digest(old, tmp_path):
    """Migration is reading and writing: the content is the same."""
    state = read_checkpoint(old / "interrupted" / "checkpoint.pt", CPU)
    write_checkpoint(tmp_path / "new.pt", state)
    assert b"bilateral sha256 " in (tmp_path / "new.pt").read_bytes()[-100:]
    again = read_checkpoint(tmp_path / "new.pt", CPU)
    assert again["sums"] == state["sums"] and again["about"] == state["about"]
    plain = torch.load(tmp_path / "new.pt", weights_only=True)  # torch alone reads it too
    assert all(value.equal(state["model"][name]) for name, value in plain["model"].items())
    path = old / "finished" / "model.safetensors"
    network = pytest.importorskip("first_release_network").network()
    read_weights(path, network)
    write_weights(tmp_path / "new.safetensors", network, read_about(path))
    assert '"sha256"' in read_about_raw(tmp_path / "new.safetensors")
    assert read_about(tmp_path / "new.safetensors") == read_about(path)
