"""`bench evaluate`: both sides measured on the same images, and told apart."""

import json

import pytest
import torch
from PIL import Image

from bilateral.cli import main
from bilateral.data.datasets import load
from bilateral.errors import UserError
from bilateral.evaluation import bench, peers
from bilateral.evaluation.bench import bench_evaluate
from bilateral.evaluation.target import Target
from bilateral.models import build_model
from bilateral.runs import RunFolder

CPU = torch.device("cpu")
EPSILON = 0.02


@pytest.fixture
def target(tmp_path):
    """An untrained network whose own predictions are the labels."""
    pytest.importorskip("foolbox")
    pytest.importorskip("pyautoattack")
    torch.manual_seed(0)
    model = build_model("small-cnn", 10, 1).eval()
    split = load("digits", "test")
    images = torch.from_numpy(split.pixels).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        model.head.bias -= model(images).mean(0)
        split.labels[:] = model(images).argmax(1).numpy()
    return Target("test", model, RunFolder(tmp_path), "digits", split)


@pytest.mark.filterwarnings("ignore:there are .* points with zero gradient")
def test_ours_and_the_peers_agree(target, tmp_path):
    attacks = ["pgd10", "apgd", "cw-l2", "deepfool-l2"]
    notes = []
    sizes = (16, 64)
    result = bench_evaluate(
        target, attacks, EPSILON, 24, CPU, peer_batch_sizes=sizes, note=notes.append
    )
    for line in notes[1:]:  # the first is the warm-up
        assert ("mean L2" in line) == ("-l2" in line), "the same is said of both sides"
        assert line.endswith("%") == ("-l2" not in line)
    assert list(result["attacks"]) == attacks
    for name, row in result["attacks"].items():
        assert row["images"] == 24
        assert row["ratio"] == pytest.approx(row["peer_seconds"] / row["seconds"])
        assert row["peer_seconds"] == min(row["peer_seconds_by_batch_size"].values())
        assert set(row["peer_seconds_by_batch_size"]) == {"16", "24"}
        if name in ("cw-l2", "deepfool-l2"):
            assert row["mean_distance"] == pytest.approx(row["peer_mean_distance"], rel=0.02)
            assert row["peer_accuracy"] is None
        else:
            # Two of the images: the peer's random starts are not ours.
            assert abs(row["accuracy"] - row["peer_accuracy"]) < 2.5 / 24
    assert result["attacks"]["apgd"]["peer"] == "pyautoattack"
    assert not list(tmp_path.iterdir())  # nothing is written


def test_a_missing_peer_is_told_of_before_anything_is_timed(target, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(peers, "import_module", absent)
    monkeypatch.setattr(bench, "ours", lambda *_: pytest.fail("timed already"))
    with pytest.raises(UserError, match="foolbox is not installed"):
        bench_evaluate(target, ["pgd10"], EPSILON, 40, CPU)


def test_pictures_of_different_sizes_are_resized(tmp_path, monkeypatch, capsys):
    pytest.importorskip("foolbox")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "from bilateral.models import build_model\n"
        "def build(classes, channels):\n"
        "    return build_model('small-cnn', classes, channels).eval()\n"
    )
    for place in range(20):
        file = tmp_path / "pictures" / "test" / "ab"[place % 2] / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((10 + place, 12), 90).convert("RGB").save(file)
        train = tmp_path / "pictures" / "train" / "ab"[place % 2]
        train.mkdir(parents=True, exist_ok=True)
        (train / file.name).write_bytes(file.read_bytes())
    words = ["bench", "evaluate", "own.py:build", "--data", "folder:pictures", "--attacks", "pgd2"]
    words += ["--quiet", "--json"]
    assert main(words) == 2
    assert "give --image-size" in capsys.readouterr().err
    assert main([*words, "--image-size", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["attacks"]["pgd2"]["images"] == 20
