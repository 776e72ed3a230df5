"""Hostile files given to the real command: exit code 2, one line, little memory, no change."""

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formats_runs import RUN
from test_hostile_files import ABOUT, STATE, Payload, gigapixel_jpeg, gigapixel_png, npy

from bilateral.models import build_model
from bilateral.runs import RunFolder
from bilateral.weights import write_weights

MEMORY = 2 * 2**30
MODEL = """
from torch import nn
def build(classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))
"""


def refused(folder: Path, *words: object) -> str:
    """What the command says; it must have left the folder as it was."""
    before = contents(folder)
    environment = {**os.environ, "BILATERAL_DATA": str(folder.parent / "cache")}
    with subprocess.Popen(
        [sys.executable, "-m", "bilateral", *map(str, words)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        said, complained = child.communicate(timeout=120)
        assert child.returncode == 2, complained
    assert complained.count("\n") == 1 and complained.startswith("bilateral: "), complained
    assert said == "" and len(complained) < 2000
    assert contents(folder) == before
    return complained


def contents(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size if path.is_file() else -1
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(autouse=True)
def little_memory() -> Any:
    """No command of these tests takes 2 GiB, torch included."""
    yield
    import resource

    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < MEMORY


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.fixture
def run(place: Path) -> RunFolder:
    folder = RunFolder(place / "run")
    folder.prepare(RUN, {})
    write_weights(folder.weights, build_model("small-cnn", 10, 1), ABOUT)
    return folder


def test_an_archive_that_grows_a_thousandfold(place: Path) -> None:
    path = place / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        head = bytearray(b"cifar/data_batch_1".ljust(512, b"\0"))
        head[124:136], head[156:157], head[148:156] = b"77777777777\0", b"0", b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        file.write(bytes(head))
        for _ in range(800):
            file.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    said = refused(place, "data", "fetch", "cifar10", "--source", path)
    assert "unpacks to more than 512 MiB: refused" in said


def test_deep_and_huge_configurations(place: Path, run: RunFolder) -> None:
    deep = place / "deep.json"
    deep.write_text('{"run":' * 100_000)
    assert "nested deeper" in refused(place, "train", deep)
    with run.config.open("wb") as file:
        file.truncate(2**40)
    assert "more than 67,108,864 are refused" in refused(place, "evaluate", "run")


def test_weights_without_classes_and_weights_of_nan(place: Path, run: RunFolder) -> None:
    model = build_model("small-cnn", 10, 1)
    write_weights(run.weights, model, {"channels": 1, "image_size": [8, 8]})
    assert "classes is missing" in refused(place, "evaluate", "run")
    torch.nn.init.constant_(model.head.weight, torch.nan)  # type: ignore[union-attr, arg-type]
    write_weights(run.weights, model, ABOUT)
    assert "head.weight contains NaN or infinity" in refused(place, "evaluate", "run")


def test_a_checkpoint_with_a_payload(place: Path, run: RunFolder) -> None:
    run.weights.unlink()
    torch.save({**STATE, "about": Payload(place / "made")}, run.checkpoint)
    (place / "again.json").write_bytes(run.config.read_bytes())
    (place / "run").rename(place / "seed0")
    (place / "runs").mkdir()
    (place / "seed0").rename(place / "runs" / "seed0")
    said = refused(place, "train", "again.json", "--out", ".", "--name", "runs", "--quiet")
    assert "checkpoint.pt is damaged" in said and "remove it to start again" in said


def test_kept_images_that_are_a_payload_or_a_bomb(place: Path, run: RunFolder) -> None:
    path = place / "kept.npz"
    np.savez(path, about=np.array([Payload(place / "made")], dtype=object))
    assert "object is not numbers or text" in refused(place, "verify", path, "--target", "run")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("images.npy", npy((2**40, 3, 32, 32), b"a"))
    assert "declared, 1 bytes found" in refused(place, "verify", path, "--target", "run")


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.png", gigapixel_png(40_000, 30_000)), ("a.jpg", gigapixel_jpeg(10_000, 9_000))],
)
@pytest.mark.parametrize("size", ["8", None])
def test_a_photograph_of_a_billion_pixels(
    place: Path, name: str, content: bytes, size: str | None
) -> None:
    (place / "model.py").write_text(MODEL)
    for label in ("cat", "dog"):
        (place / "val" / label).mkdir(parents=True)
        (place / "val" / label / name).write_bytes(content)
    words = ["evaluate", "model.py:build", "--data", f"folder:{place}", "--attacks", "fgsm"]
    said = refused(place, *words, *(["--image-size", size] if size else []))
    assert f"cat/{name} is not a readable image" in said


def test_safetensors_with_an_absurd_header(place: Path) -> None:
    (place / "w.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    said = refused(place, "train", "digits-undefended", "--weights", "w.safetensors", "--quiet")
    assert "w.safetensors is damaged, or not safetensors" in said


def test_flags_that_do_not_belong_together(place: Path, run: RunFolder) -> None:
    path = run.attack("fgsm", "40/255")
    path.parent.mkdir()
    texts = ("attack", "epsilon_text", "data", "data_digest", "search", "weights_digest")
    flags = {"settings": {"fgsm": {}}, "epsilon": 0.1, "versions": {}, **dict.fromkeys(texts, "x")}
    members = {"fgsm": {"images": [1, 2, 3], "robust": [True]}}
    path.write_text(json.dumps({"schema": 1, **flags, "members": members}))
    shutil.copytree(run.path, place / "other")
    said = refused(place, "compare", "run", "other", "--attack", "fgsm", "--epsilon", "40/255")
    assert "robust has another length than images" in said
