"""What an export is checked on, and what it carries: real images, averaged weights, names."""

import json
import zipfile

import numpy as np
import onnx
import pytest
import torch
from export_runs import export, make_run
from PIL import Image

from bilateral.cli import main
from bilateral.config import Data, Run
from bilateral.data.datasets import load
from bilateral.export.exporting import IMAGES, check_images
from bilateral.runs import RunFolder
from bilateral.training.checkpoint import read_checkpoint
from bilateral.weights import read_about


@pytest.fixture
def notes():
    return []


def pictures(folder, size):
    for split in ("train", "val"):
        for place, name in enumerate(("cat", "dog")):
            (folder / split / name).mkdir(parents=True)
            for number in range(3):
                colour = (100 * place, 20 * number, 7)
                Image.new("RGB", size, colour).save(folder / split / name / f"{number}.png")


def test_real_test_images_are_used_where_they_are_on_disk(notes):
    images, source = check_images(Run(data=Data(name="digits")), (1, 8, 8), notes.append)
    assert (source, notes, len(images)) == ("test images of digits", [], IMAGES)
    assert images.dtype == torch.float32 and images.min() >= 0 and images.max() <= 1
    split = load("digits", "test")
    known = {image.tobytes() for image in split.pixels}
    ours = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    assert all(np.ascontiguousarray(image).tobytes() in known for image in ours)


def test_a_folders_own_pictures_are_used(tmp_path, notes):
    """Fewer than are asked for, and larger than the model takes."""
    pictures(tmp_path, (24, 20))
    run = Run(data=Data(name=f"folder:{tmp_path}"), image_size=16)
    images, source = check_images(run, (3, 16, 16), notes.append)
    assert images.shape == (6, 3, 16, 16) and notes == []
    assert source == f"test images of folder:{tmp_path}"
    assert images[-1, :, 0, 0].tolist() == pytest.approx([100 / 255, 40 / 255, 7 / 255])


def test_random_images_take_the_place_of_what_does_not_fit(tmp_path, notes):
    pictures(tmp_path, (24, 24))
    run = Run(data=Data(name=f"folder:{tmp_path}"))
    images, source = check_images(run, (3, 16, 16), notes.append)
    assert source == "random images" and images.shape == (IMAGES, 3, 16, 16)
    assert "its images are now of shape (3, 24, 24)" in notes[0]
    again, _ = check_images(run, (3, 16, 16), notes.append)
    assert torch.equal(images, again)
    gone = Run(data=Data(name=f"folder:{tmp_path / 'gone'}"))
    assert check_images(gone, (3, 16, 16), notes.append)[1] == "random images"
    assert "gone is not a folder" in notes[-1]


def test_the_averaged_weights_are_exported(tmp_path, capsys):
    words = ["--epochs", "1", "--averaging", "0.9", "--check-epochs", "0", "--quiet"]
    assert main(["train", "digits-r-mc-la", *words, "--out", str(tmp_path)]) == 0
    folder = RunFolder(tmp_path / "digits-r-mc-la" / "seed0")
    assert export(folder.path, "--quiet") == 0
    from safetensors.torch import load_file

    found = load_file(folder.path / "export" / "model.safetensors")
    state = read_checkpoint(folder.checkpoint, torch.device("cpu"))
    for name, value in state["averaged"].items():
        assert torch.equal(found[name], value), name
    assert not torch.equal(found["head.weight"], state["model"]["head.weight"])
    assert "Weights: averaged" in (folder.path / "export" / "MODEL_CARD.md").read_text()


def test_an_exported_weights_file_starts_a_training(exported, tmp_path, capsys):
    words = ["--epochs", "1", "--check-epochs", "0", "--quiet", "--out", str(tmp_path)]
    words += ["--weights", str(exported / "model.safetensors")]
    assert main(["train", "digits-r-mc-la", *words]) == 0


def test_every_format_says_what_the_model_is(exported):
    about = read_about(exported / "model.safetensors")
    assert about["input"] == "float32 images in [0, 1], shape (N, C, H, W)"
    model = onnx.load(exported / "model.onnx")
    assert {one.key: json.loads(one.value) for one in model.metadata_props} == {"bilateral": about}
    with zipfile.ZipFile(exported / "model.pt2") as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("about.json")]
        assert json.loads(archive.read(name)) == about


def test_the_onnx_model_names_its_input_and_output(exported):
    graph = onnx.load(exported / "model.onnx").graph
    shapes = {
        value.name: [one.dim_param or one.dim_value for one in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert set(shapes) == {"images", "logits"}
    assert shapes["images"][1:] == [1, 8, 8] and shapes["logits"][1:] == [10]
    assert shapes["images"][0] == shapes["logits"][0] and isinstance(shapes["images"][0], str)


def test_an_operation_that_onnx_does_not_have_is_one_line(tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Own(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.head = torch.nn.Linear(8, 10)\n"
        "    def forward(self, images):\n"
        "        return self.head(torch.linalg.eigvalsh(images[:, 0]))\n"
        "def build():\n"
        "    return Own()\n"
    )
    run = make_run(tmp_path / "run", f"{tmp_path / 'own.py'}:build")
    assert export(run.path, "--format", "onnx") == 2
    told = capsys.readouterr().err
    assert "torch.onnx cannot export" in told and "--format torch" in told
    assert told.count("\n") == 1 and not (run.path / "export").exists()
