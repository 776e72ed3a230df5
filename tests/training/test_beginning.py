"""A run that begins with saved weights: of the same classes, of others, of other people's."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bilateral.cli import main
from bilateral.config import Run
from bilateral.data.datasets import Split, load
from bilateral.errors import UserError
from bilateral.evaluation.target import trained_model
from bilateral.models import build_model
from bilateral.models.probe import last_linear_name
from bilateral.paper.recipes import recipe_named
from bilateral.processes import Processes
from bilateral.runs import RunFolder, weights_file
from bilateral.training.preparation import begin_with
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train
from bilateral.weights import declared_shapes, read_about, write_weights

CLASSES = ["ape", "bee", "cat"]


def network(classes: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_model("small-cnn", classes)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    about = {"classes": CLASSES, "channels": 3, "image_size": [8, 8], "model": "small-cnn"}
    write_weights(path, network(), about)
    return path


def begun(path: Path, model: nn.Module, classes: list[str]) -> str:
    """What is said when a run begins with a file."""
    run, said = begin_with(str(path), Run(), model, classes, Processes())
    assert run.weights_digest == hashlib.sha256(path.read_bytes()).hexdigest()
    return said


def equal(one: nn.Module, other: nn.Module, part: str) -> bool:
    theirs = other.get_submodule(part).state_dict()
    own = one.get_submodule(part).state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in own.items())


def test_the_same_classes_keep_every_weight(trained: Path) -> None:
    model = network(seed=1)
    assert begun(trained, model, CLASSES).endswith("of the same classes: every layer is taken")
    assert equal(model, network(), "body") and equal(model, network(), "head")


@pytest.mark.parametrize("classes", [["bee", "ape", "cat"], list("pqr"), list("pqrst")])
def test_other_classes_keep_all_but_the_last_layer(trained: Path, classes: list[str]) -> None:
    """Also the same ones in another order, which would all be taken for each other."""
    model = network(len(classes), seed=1)
    whose = "these classes in another order" if "bee" in classes else "3 other classes"
    assert begun(trained, model, classes).endswith(f"of {whose}: the last layer, head, is new")
    assert equal(model, network(), "body")
    assert equal(model, network(len(classes), seed=1), "head"), "as it was before"


def test_what_others_wrote_names_no_classes(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    save_file(network().state_dict(), path)
    same, more = network(seed=1), network(5, seed=1)
    assert begun(path, same, list("pqr")).endswith("names no classes: its last layer is kept")
    assert equal(same, network(), "head")
    assert "of 3 other classes" in begun(path, more, list("pqrst"))
    assert equal(more, network(), "body") and equal(more, network(5, seed=1), "head")


def test_another_network_is_refused_and_nothing_is_loaded(trained: Path, tmp_path: Path) -> None:
    for classes in (CLASSES, list("pqrst")):
        other = build_model("wrn-10-1", len(classes))
        before = {name: value.clone() for name, value in other.state_dict().items()}
        with pytest.raises(UserError, match=r"does not fit .*; the file is for small-cnn, 3 chan"):
            begun(trained, other, classes)
        assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    tensors = load_file(trained)
    tensors["body.0.weight"][0] = torch.nan
    save_file(tensors, tmp_path / "broken.safetensors")
    with pytest.raises(UserError, match=r"body\.0\.weight contains NaN"):
        begun(tmp_path / "broken.safetensors", network(5), list("pqrst"))


def test_a_model_without_a_last_linear_layer_takes_all_or_nothing(tmp_path: Path) -> None:
    def convolutional(classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, classes, 8), nn.Flatten())

    path = tmp_path / "theirs.safetensors"
    save_file(convolutional(3).state_dict(), path)
    assert last_linear_name(convolutional(3), 3) is None
    assert "is kept" in begun(path, convolutional(3), list("pqr"))
    with pytest.raises(UserError, match="does not fit the model"):
        begun(path, convolutional(5), list("pqrst"))
    about = {"classes": CLASSES, "channels": 3, "image_size": [8, 8]}
    write_weights(path, convolutional(3), about)
    with pytest.raises(UserError, match=r"of other classes, and .* has no final linear layer"):
        begun(path, convolutional(3), list("pqr"))
    assert "every layer is taken" in begun(path, convolutional(3), CLASSES)


def test_a_last_layer_that_is_none_is_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    save_file({**network().state_dict(), "head.weight": torch.tensor(1.0)}, path)
    with pytest.raises(UserError, match=r"head\.weight \(\(\) in the file"):
        begun(path, network(), list("pqr"))


def test_processes_with_other_files_are_refused(trained: Path) -> None:
    class Two(Processes):
        def gather(self, value: Any) -> list[Any]:
            return [value, "of another file"]

    with pytest.raises(UserError, match="do not find the same weights at"):
        begin_with(str(trained), Run(), network(), CLASSES, Two())
    missing = trained.with_name("nowhere.safetensors")
    with pytest.raises(UserError, match="do not find the same weights at"):
        begin_with(str(missing), Run(), network(), CLASSES, Two())


def test_the_last_layer_is_the_last_of_that_many_outputs() -> None:
    layers = [nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 7)]
    assert last_linear_name(nn.Sequential(*layers), 3) == "2"
    assert last_linear_name(nn.Sequential(*layers), 5) is None


def test_what_was_learnt_of_some_digits_helps_with_others(tmp_path: Path) -> None:
    """0 to 4 are learnt first, then a few of 5 to 9 in two epochs, with these weights and new."""
    whole = load("digits", "train")

    def digits(first: int) -> Split:
        chosen = (whole.labels >= first) & (whole.labels < first + 5)
        names = whole.classes[first : first + 5]
        return Split(whole.pixels[chosen], whole.labels[chosen] - first, names)

    quiet, device = TrainingProgress(quiet=True), torch.device("cpu")
    run = recipe_named("digits-r-mc-la").with_fields(epochs=6, check_epochs=0)
    source, rest = RunFolder(tmp_path / "source"), digits(5)
    train(run, source, digits(0), device, quiet)
    few = run.with_paths({"data.images_per_class": 20, "optimiser.batch_size": 20})
    images = torch.from_numpy(rest.pixels).permute(0, 3, 1, 2) / 255
    right = {}
    for name, weights in (("new", None), ("begun", str(source.weights))):
        folder = RunFolder(tmp_path / name)
        train(few.with_fields(weights=weights, epochs=2), folder, rest, device, quiet)
        _, model = trained_model(folder, device)
        found = model(images).argmax(1) == torch.from_numpy(rest.labels)
        right[name] = float(found.float().mean())
    assert right["begun"] > right["new"] + 0.1, right


def test_another_file_in_its_place_is_told_and_none_is_needed_to_go_on(tmp_path: Path) -> None:
    """The configuration knows which file it was; what is under way has its own weights."""
    digits, device, quiet = load("digits", "train"), torch.device("cpu"), TrainingProgress(True)
    run = recipe_named("digits-r-mc-la").with_paths({"epochs": 1, "data.images_per_class": 13})
    source = RunFolder(tmp_path / "source")
    train(run, source, digits, device, quiet)
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(source.weights.read_bytes())
    begun, folder = run.with_fields(weights=str(weights)), RunFolder(tmp_path / "begun")
    train(begun, folder, digits, device, quiet)
    record = folder.read_run()
    assert record == begun.with_fields(weights_digest=record.weights_digest)
    train(record, RunFolder(tmp_path / "repeated"), digits, device, quiet)
    assert (tmp_path / "repeated/model.safetensors").read_bytes() == folder.weights.read_bytes()
    write_weights(weights, build_model("small-cnn", 10, 1), {**read_about(source.weights)})
    with pytest.raises(UserError, match="is not the file that this run began with"):
        train(record, RunFolder(tmp_path / "again"), digits, device, quiet)
    assert not (tmp_path / "again").exists()
    weights.unlink()
    assert not train(begun, folder, digits, device, quiet), "finished: nothing is read"
    write_weights(weights, build_model("small-cnn", 10, 1), {**read_about(source.weights)})
    other = ["train", str(folder.config), "--weights", str(weights), "--name", "other"]
    assert main([*other, "--out", str(tmp_path), "--quiet"]) == 0, "asked for, it is another run"
    folder.weights.unlink()
    assert train(begun, folder, digits, device, quiet), "the checkpoint holds everything"
    assert (tmp_path / "repeated/model.safetensors").read_bytes() == folder.weights.read_bytes()


def test_a_run_folder_that_is_gone_is_still_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "digits-r-mc-la", "--epochs", "1", "--data.images-per-class", "13", "--quiet"]
    assert main([*words, "--name", "source"]) == 0
    words += ["--weights", "runs/source/seed0", "--name", "begun"]
    assert main(words) == 0
    shutil.rmtree("runs/source")
    capsys.readouterr()
    assert main(words) == 0
    assert "already finished" in capsys.readouterr().out
    assert main([*words[:-1], "new"]) == 2
    lost = tmp_path / "runs/source/seed0/model.safetensors"
    assert capsys.readouterr().err == f"bilateral: no weights at {lost}\n"


def test_what_was_meant_by_weights_is_said(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs/half/seed0")
    run.mkdir(parents=True)
    with pytest.raises(UserError, match="is not a run folder: it has no config"):
        weights_file(str(run))
    (run / "config.json").write_text("{}")
    with pytest.raises(UserError, match="runs/half/seed0 has no model yet"):
        weights_file(str(run))
    with pytest.raises(UserError, match="did you mean runs/half/seed0"):
        weights_file("runs/half")
    (run / "checkpoint.pt").write_bytes(b"PK")
    shutil.copy(trained, run)
    with pytest.raises(
        UserError, match=r"a run's checkpoint; its weights are in .*model\.safetensors"
    ):
        declared_shapes(weights_file(str(run / "checkpoint.pt")))
    assert weights_file(str(run)) == run / "model.safetensors"
    assert weights_file("w") == Path("w/model.safetensors")
    shutil.copy(trained, "w")
    assert weights_file("w") == Path("w"), "a file, whatever its name"
