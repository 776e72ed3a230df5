"""What a run's model is evaluated on: its own data or others of the same classes, kept apart."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from bilateral.cli import main
from bilateral.errors import UserError
from bilateral.evaluation.target import find_target, trained_model
from bilateral.report.gather import gather
from bilateral.runs import RunFolder
from bilateral.weights import read_about, write_weights

CPU = torch.device("cpu")


def folder_of(path: Path, classes: str) -> Path:
    for label, name in enumerate(classes):
        for number in range(12):
            (path / name).mkdir(parents=True, exist_ok=True)
            grey = 20 * label + number
            Image.new("RGB", (8, 8), (grey, grey, 255 - grey)).save(path / name / f"{number}.png")
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "own", "abc")
    words = ["--model", "small-cnn", "--epochs", "1", "--check-epochs", "0", "--quiet"]
    words += ["--guard", "watch"]
    assert main(["train", "folder", "--data", "folder:own", *words]) == 0
    return Path("runs/folder-small-cnn/seed0")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("abd", "without c, with d$"),
        ("ab", "without c$"),
        ("abcd", "with d$"),
        ("defghijk", r"without a, b, c, with d, e, f, g, h, \.\.\.$"),
    ],
)
def test_data_of_other_classes_are_refused(run: Path, classes: str, message: str) -> None:
    """By their order "d" would be taken for "c", and the accuracy for a fact."""
    folder_of(Path("other"), classes)
    with pytest.raises(UserError, match=f"^folder:other has other classes.*: {message}"):
        find_target(str(run), "folder:other", None, None, CPU)


def test_a_class_that_is_gone_is_told(run: Path) -> None:
    for picture in Path("own/b").iterdir():
        picture.unlink()
    Path("own/b").rmdir()
    with pytest.raises(UserError, match=r"folder:own has other classes .*: without b$"):
        find_target(str(run), None, None, None, CPU)


def test_what_is_measured_on_other_data_lies_elsewhere(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(Path("other"), "abc")
    words = ["evaluate", str(run), "--attacks", "fgsm", "--quiet"]
    assert main(words) == 0
    own = (run / "attacks" / "fgsm@8-255.json").read_bytes()
    assert main([*words, "--data", "folder:other"]) == 0
    assert (run / "attacks" / "fgsm@8-255.json").read_bytes() == own
    found = json.loads((run / "evaluation.json").read_text())["entries"]
    assert [entry["data"] for entry in found] == ["folder:own"]
    (place,) = (run / "on").iterdir()
    assert place.name.startswith("other-")
    (entry,) = json.loads((place / "evaluation.json").read_text())["entries"]
    assert entry["data"] == "folder:other"
    assert main([*words[:-1], "--data", "folder:./other"]) == 0
    assert f"results go to {place}" in capsys.readouterr().err
    folder_of(Path("another/other"), "abc")
    assert main([*words, "--data", "folder:another/other"]) == 0
    assert len([*(run / "on").iterdir()]) == 2, "folders of one name, each by itself"


def test_another_image_size_is_another_measurement(run: Path) -> None:
    """It would replace what was measured on the pictures as the run sees them."""
    other = find_target(str(run), None, 16, None, CPU)
    assert other.folder.path.parent == run / "on" and other.folder.path.name.startswith("own-at-16")
    assert other.split.pixels.shape[1] == 16
    assert find_target(str(run), None, None, None, CPU).folder.path == run


def test_own_pictures_are_attacked_at_what_the_run_was_trained_for(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "folder", "--data", "folder:own", "--model", "small-cnn", "--epochs", "1"]
    words += ["--check-epochs", "0", "--guard", "watch", "--adversary.epsilon", "3/255"]
    assert main([*words, "--name", "three"]) == 0
    said = capsys.readouterr().err
    assert "to measure its robustness: bilateral evaluate runs/three/seed0\n" in said
    assert main(["evaluate", "runs/three/seed0", "--attacks", "fgsm", "--json", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["epsilon_text"] == "3/255"
    assert "trained at" not in shown.err
    assert find_target("runs/three/seed0", None, None, None, CPU).epsilon == 3 / 255
    assert main([*words, "--method", "undefended", "--name", "none", "--quiet"]) == 0
    assert find_target("runs/none/seed0", None, None, None, CPU).epsilon == 8 / 255


def test_what_lies_elsewhere_knows_its_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("other"), "abc")
    words = ["evaluate", str(run), "--attacks", "fgsm", "--data", "folder:other", "--quiet"]
    assert main([*words, "--save-adversarial"]) == 0
    (place,) = (run / "on").iterdir()
    (kept,) = (place / "adversarial").iterdir()
    capsys.readouterr()
    assert main(["verify", str(kept), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["claim_holds"]
    (files,) = gather([str(place)])
    assert files.name == f"folder-small-cnn/seed0 on {place.name}"
    again = f"bilateral diagnose {run} --data folder:other"
    assert {gap.file: gap.command for gap in files.gaps}["diagnostics.json"] == again


@pytest.mark.parametrize("spelled", ["folder:./own", "folder:{here}/own", "folder:own/../own"])
def test_the_same_folder_by_another_name_is_the_same(
    run: Path, spelled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = spelled.format(here=Path.cwd())
    assert find_target(str(run), name, None, None, CPU).folder.path == run
    assert find_target(str(run), name, None, "else", CPU).folder.path == Path("else")
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", name, "--attacks", "fgsm", "--quiet"]) == 0
    assert "has no val/" not in capsys.readouterr().err, "training left them out"


def test_the_same_classes_in_another_order_are_refused(run: Path) -> None:
    """What a file says is what counts, not the order of folders here."""
    weights = run / "model.safetensors"
    model = trained_model(RunFolder(run), CPU)[1]
    write_weights(weights, model, {**read_about(weights), "classes": ["b", "a", "c"]})
    with pytest.raises(UserError, match=r"the same in another order$"):
        find_target(str(run), None, None, None, CPU)


def test_a_run_of_another_split_is_neither_judged_nor_gone_on_with(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the seed chose what is for test: those pictures are others, and were trained on."""
    config = run / "config.json"
    stored = json.loads(config.read_text())
    config.write_text(json.dumps({**stored, "schema": 1}))
    again = ["train", str(config), "--out", "runs", "--quiet"]
    for words in (["evaluate", str(run), "--attacks", "fgsm", "--quiet"], again):
        assert main(words) == 2
        assert "by an older version that chose the test pictures of" in capsys.readouterr().err
    folder_of(Path("own/train"), "abc")
    folder_of(Path("own/val"), "abc")
    for name in "abc":
        shutil.rmtree(Path("own") / name)
    assert main(["evaluate", str(run), "--attacks", "fgsm", "--quiet"]) == 0, "it has its own"


def test_more_outputs_than_classes_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "own", "abc")
    code = "import torch\ndef {}():\n    layers = torch.nn.Flatten(), torch.nn.Linear(192, {})\n"
    text = "".join(
        code.format(f"of{n}", n) + "    return torch.nn.Sequential(*layers)\n" for n in (3, 5)
    )
    Path("model.py").write_text(text)
    for outputs, told in ((5, True), (3, False)):
        words = ["evaluate", f"model.py:of{outputs}", "--data", "folder:own", "--attacks", "fgsm"]
        assert main([*words, "--quiet"]) == 0
        said = "folder:own has 3 classes, but the model has 5 outputs: does output 0 mean a?"
        assert (said in capsys.readouterr().err) == told
