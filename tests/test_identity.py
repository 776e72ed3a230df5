"""Figures are of the run whose name they bear, whatever was copied, edited or renamed since."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import bilateral
from bilateral.cli import main
from bilateral.data.datasets_entry import SPLITS
from bilateral.data.readers_folder import files_of_split
from bilateral.report.gather import gather
from bilateral.runs import RunFolder, said_of_weights

SMALL = ["--epochs", "1", "--data.images-per-class", "13", "--check-epochs", "0", "--quiet"]
PICTURES = ["train", "folder", "--data", "folder:own", "--model", "small-cnn", "--guard", "watch"]
PICTURES += ["--epochs", "1", "--check-epochs", "0", "--name", "own", "--quiet"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two evaluated runs of the digits, a and b."""
    place = tmp_path_factory.mktemp("runs")
    for name, recipe in (("a", "digits-r-mc-la"), ("b", "digits-undefended")):
        assert main(["train", recipe, *SMALL, "--name", name, "--out", str(place)]) == 0
        target = str(place / name / "seed0")
        words = ["--attacks", "fgsm,pgd2", "--images", "20", "--quiet"]
        assert main(["evaluate", target, *words]) == 0
    return place


@pytest.fixture
def place(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to spoil, and the place to be."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a refused command says, in its one line."""
    capsys.readouterr()
    assert main([*words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def edit(config: Path, **fields: object) -> None:
    said = json.loads(config.read_text())
    said["run"] |= fields
    config.write_text(json.dumps(said))


def test_figures_of_weights_that_are_gone_are_neither_shown_nor_compared(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `rsync` does: another training comes over, and the evaluation stays."""
    a, b = place / "a/seed0", place / "b/seed0"
    for name in ("config.json", "log.jsonl", "checkpoint.pt", "model.safetensors"):
        shutil.copy(b / name, a / name)
    (files,) = gather([str(a)])
    assert not files.entries and not files.attacks
    assert any("made with other weights" in gap.problem for gap in files.gaps)
    said = refused(capsys, "compare", str(a), str(b), "--attack", "fgsm")
    assert "of other weights than" in said and f"bilateral evaluate {a} --attacks fgsm" in said
    assert main(["evaluate", str(a), "--attacks", "fgsm", "--images", "20", "--quiet"]) == 0
    (files,) = gather([str(a)])
    assert len(files.entries) == 1 and [one["attack"] for one in files.attacks] == ["fgsm"]


def test_a_checkpoint_of_another_run_is_not_gone_on_with(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(place / "b/seed0")
    folder.config.unlink()
    folder.weights.unlink()
    content = folder.checkpoint.read_bytes()
    said = refused(capsys, "train", "digits-r-mc-la", *SMALL, "--name", "b")
    assert "checkpoint.pt was trained with another configuration" in said
    assert "method: undefended -> adversarial" in said
    assert folder.checkpoint.read_bytes() == content and not folder.weights.exists()


@pytest.mark.parametrize("command", ["train", "evaluate", "export"])
def test_weights_under_an_edited_configuration_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    folder = RunFolder(place / "a/seed0")
    edit(folder.config, epochs=40)
    target = str(folder.config if command == "train" else folder.path)
    said = refused(capsys, command, target, "--quiet")
    assert "model.safetensors was trained with another configuration" in said
    assert "epochs: 1 -> 40" in said


def test_a_page_shows_by_what_the_weights_were_trained(place: Path) -> None:
    folder = RunFolder(place / "a/seed0")
    edit(folder.config, epochs=40, method="undefended")
    (files,) = gather([str(folder.path)])
    assert (files.config["epochs"], files.config["method"]) == (1, "adversarial")
    (gap,) = [gap for gap in files.gaps if gap.file == "config.json"]
    assert "epochs: 1 -> 40" in gap.problem


def test_files_of_earlier_versions_say_less_and_are_read(place: Path) -> None:
    """What a file does not say of its run cannot differ."""
    from bilateral.models import build_model
    from bilateral.weights import read_about, read_weights, write_weights

    folder = RunFolder(place / "a/seed0")
    model = build_model("small-cnn", 10, 1, (8, 8))
    read_weights(folder.weights, model)
    network = ("classes", "channels", "image_size", "model")
    about = read_about(folder.weights)
    write_weights(folder.weights, model, {key: about[key] for key in network})
    edit(folder.config, epochs=40)
    assert main(["evaluate", str(folder.path), "--attacks", "fgsm", "--images", "20"]) == 0
    (files,) = gather([str(folder.path)])
    assert files.config["epochs"] == 40 and len(files.entries) == 1


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 9, b"\2\0\0\0\0\0\0\0{}", b"\4\0\0\0\0\0\0\0null"]
)
def test_what_no_weights_file_says_is_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    assert said_of_weights(path) == {}
    path.write_bytes(content)
    assert said_of_weights(path) == {}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on somebody's own pictures, evaluated."""
    monkeypatch.chdir(tmp_path)
    for label, name in enumerate("abc"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(30):
            grey = 60 * label + number
            picture = Image.new("RGB", (8, 8), (grey, grey, 255 - grey))
            picture.save(tmp_path / "own" / name / f"{number}.png")
    assert main(PICTURES) == 0
    run = Path("runs/own/seed0")
    assert main(["evaluate", str(run), "--attacks", "fgsm", "--quiet"]) == 0
    return run


def rename(folder: str) -> None:
    for picture in list(Path(folder).rglob("*.png")):
        picture.rename(picture.with_name(f"p{picture.name}"))


def test_pictures_that_got_other_names_are_told_of(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names decide what is for test, so most of what is now was trained on."""
    rename("own")
    capsys.readouterr()
    assert main(["evaluate", str(own), "--attacks", "fgsm", "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "other training pictures than when the model was trained" in said
    assert "replaces an evaluation of other weights, code or images" in said
    entry = json.loads((own / "evaluation.json").read_text())["entries"][-1]
    assert any("may have been trained on" in warning for warning in entry["warnings"])
    assert "have changed since" in refused(capsys, *PICTURES)


def test_the_same_pictures_elsewhere_are_no_cause_for_doubt(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were moved: config.json is told where, and training goes on there."""
    Path("own").rename("moved")
    config = json.loads((own / "config.json").read_text())
    data = config["run"]["data"] | {"name": "folder:moved"}
    evaluate = ["evaluate", str(own), "--attacks", "fgsm", "--quiet"]
    for edited in (False, True):
        if edited:
            edit(own / "config.json", data=data)
        capsys.readouterr()
        assert main([*evaluate, "--data", "folder:moved"]) == 0
        assert "other pictures" not in capsys.readouterr().err
    (own / "model.safetensors").unlink()
    assert main(["train", str(own / "config.json"), "--quiet"]) == 0
    rename("moved")
    capsys.readouterr()
    assert main(evaluate) == 0
    assert "may have been trained on" in capsys.readouterr().err


def test_renamed_pictures_of_another_folder_are_told_of_too(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where results lie by themselves, as of other data."""
    Path("own").rename("moved")
    rename("moved")
    capsys.readouterr()
    words = ["--data", "folder:moved", "--attacks", "fgsm", "--quiet"]
    assert main(["evaluate", str(own), *words]) == 0
    assert "may have been trained on" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["train", "elsewhere"])
def test_copies_of_training_pictures_among_those_for_test_are_told_of(
    own: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """Under another name, in another class, in a folder of its own: the model has seen them."""
    train, test = (files_of_split(Path("own"), split) for split in SPLITS)
    evaluate = ["evaluate", str(own), "--attacks", "fgsm", "--quiet"]
    if where == "elsewhere":
        shutil.copytree("own", "other/val")
        evaluate += ["--data", "folder:other"]
        some, every = sum(map(len, train.values())), 90
    else:
        for one in (test["a"][0], test["b"][0]):
            shutil.copy(Path("own") / one, f"own/c/copy-of-{Path(one).stem}.png")
        assert all(
            Path(name).name[:4] != "copy" for name in files_of_split(Path("own"), "test")["c"]
        )
        some, every = 2, sum(map(len, test.values()))
    capsys.readouterr()
    assert main(evaluate) == 0
    said = f"{some} of the {every} test pictures in folder:"
    assert said in capsys.readouterr().err
    folder = own if where == "train" else next((own / "on").iterdir())
    (entry,) = json.loads((folder / "evaluation.json").read_text())["entries"]
    assert any(warning.startswith(said) for warning in entry["warnings"])
    if where == "train":
        assert main([*PICTURES[:-1], "--name", "again"]) == 0
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("few", "told"), [(8, True), (25, False)])
def test_what_uneven_classes_make_of_a_figure_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], few: int, told: bool
) -> None:
    """A model that always answers the largest class withstands every attack."""
    for number in range(30 + few):
        folder = tmp_path / "own" / "val" / ("a" if number < 30 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 9, 9)).save(folder / f"{number}.png")
    (tmp_path / "one.py").write_text(
        "import torch\n\n\nclass One(torch.nn.Module):\n"
        "    def forward(self, images):\n        seen = 1e-3 * images.flatten(1)[:, :2]\n"
        "        return seen + torch.tensor([4.0, 0.0])\n\n\n"
        "def net():\n    return One()\n"
    )
    words = ["evaluate", f"{tmp_path}/one.py:net", "--data", f"folder:{tmp_path}/own"]
    words += ["--attacks", "fgsm", "--quiet", "--force", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    every = capsys.readouterr().err
    assert ("always answering a would be right on 78.9 % of these images" in every) == told
    assert main([*words, "--images", "10"]) == 0
    some = capsys.readouterr().err
    assert "always answering" not in some
    assert (
        "78.9 % of all 38 are of one class: accuracy on all of them may lie outside" in some
    ) == told
    *_, entry = json.loads((tmp_path / "out" / "evaluation.json").read_text())["entries"]
    assert any("may lie outside" in warning for warning in entry["warnings"]) == told


def test_one_class_alone_is_as_uneven_as_can_be() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
    images, labels = torch.rand(12, 1, 2, 2), torch.zeros(12, dtype=torch.long)
    found = [
        "always answering 0 would be right on 100.0 %" in " ".join(result.warnings)
        for result in (
            bilateral.evaluate(model, images[:count], labels[:count], "fgsm", force=True)
            for count in (12, 1)
        )
    ]
    assert found == [True, False], "a single image is of one class in any case"


def test_a_folder_spelled_otherwise_is_the_runs_own(own: Path) -> None:
    """The page said that checks were made on other data, and figures were set aside."""
    words = [str(own), "--attacks", "fgsm", "--quiet"]
    assert main(["evaluate", *words]) == 0
    assert main(["evaluate", *words, "--data", f"folder:{Path('own').resolve()}"]) == 0
    (entry,) = json.loads((own / "evaluation.json").read_text())["entries"]
    assert entry["data"] == "folder:own"
    assert not (own / "attacks" / "before").exists()


def test_a_folder_with_its_own_pictures_for_test_may_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for part in ("train", "val"):
        for label, name in enumerate("ab"):
            (tmp_path / "own" / part / name).mkdir(parents=True)
            for number in range(8):
                picture = Image.new("RGB", (8, 8), (90 * label + number, 9, len(part)))
                picture.save(tmp_path / "own" / part / name / f"{number}.png")
    assert main(PICTURES) == 0
    shutil.copy("own/train/a/1.png", "own/train/a/one-more.png")
    capsys.readouterr()
    assert main(["evaluate", "runs/own/seed0", "--attacks", "fgsm", "--quiet"]) == 0
    assert "other pictures" not in capsys.readouterr().err


def test_code_of_ones_own_may_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("here", "there"):
        Path(place).mkdir()
    layers = "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))"
    functions = [f"def {name}():\n    return {layers}\n" for name in ("build", "other")]
    Path("here/net.py").write_text("\n".join(["import torch\n", *functions]))
    words = ["--model", "here/net.py:build", "--name", "mine", *SMALL]
    assert main(["train", "digits-undefended", *words]) == 0
    Path("here/net.py").rename("there/net.py")
    run = Path("runs/mine/seed0")
    moved = str(tmp_path / "there/net.py")
    edit(run / "config.json", model=f"{moved}:build")
    assert main(["evaluate", str(run), "--attacks", "fgsm", "--images", "20", "--quiet"]) == 0
    edit(run / "config.json", model=f"{moved}:other")
    said = refused(capsys, "evaluate", str(run), "--attacks", "fgsm", "--quiet")
    assert "model: net.py:build -> net.py:other" in said


def test_a_configuration_of_an_earlier_version_lacks_fields_and_is_the_same(place: Path) -> None:
    """And a field that is no more is no difference either."""
    from bilateral.models import build_model
    from bilateral.weights import read_about, read_weights, write_weights

    folder = RunFolder(place / "a/seed0")
    config = json.loads(folder.config.read_text())
    del config["run"]["data"]["vary"], config["run"]["optimiser"]["turn"]
    folder.config.write_text(json.dumps(config))
    model = build_model("small-cnn", 10, 1, (8, 8))
    read_weights(folder.weights, model)
    about = read_about(folder.weights)
    about["run"] |= {"gone": 1, "data": about["run"]["data"] | {"gone": {"too": 2}}}
    write_weights(folder.weights, model, about)
    (files,) = gather([str(folder.path)])
    assert not any(gap.file == "config.json" for gap in files.gaps)
    assert main(["evaluate", str(folder.path), "--attacks", "fgsm", "--images", "20"]) == 0


def test_a_sweep_does_not_judge_by_pictures_that_were_trained_on(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are held out of more pictures, so a second judging would be of trained ones."""
    study = Path("study.toml")
    lines = [
        'recipe = "folder"',
        "held_out = 12",
        "[fields]",
        'data.name = "folder:own"',
        'model = "small-cnn"',
        "epochs = 1",
        "check_epochs = 0",
        'guard = "watch"',
        "[[runs]]",
        'name = "one"',
    ]
    study.write_text("\n".join(['attacks = "fgsm"', *lines]))
    assert main(["sweep", str(study), "--quiet"]) == 0
    shutil.copy("own/a/1.png", "own/a/one-more.png")
    study.write_text("\n".join(['attacks = "fgsm,pgd2"', *lines]))
    before = Path("sweeps/study/sweep.json").read_bytes()
    assert "have changed since" in refused(capsys, "sweep", str(study), "--quiet")
    assert Path("sweeps/study/sweep.json").read_bytes() == before


def test_figures_of_other_pictures_of_one_name_are_not_side_by_side(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its picture for test is another one, under the same name."""
    at_one = json.loads((own / "evaluation.json").read_text())["entries"][0]
    for picture in Path("own").rglob("*.png"):
        with Image.open(picture) as image:
            darker = image.point(lambda value: value // 2)
        darker.save(picture)
    words = ["--attacks", "fgsm", "--epsilon", "16/255", "--quiet"]
    assert main(["evaluate", str(own), *words]) == 0
    (files,) = gather([str(own)])
    assert [one["epsilon_text"] for one in files.entries] == ["16/255"]
    assert any("made with other images under the same name" in gap.problem for gap in files.gaps)
    assert main(["export", str(own), "--out", "export", "--quiet"]) == 0
    card = Path("export/MODEL_CARD.md").read_text()
    assert f"at {at_one['epsilon_text']}" in card and "of other images of that name" in card
