"""Batches of photographs: the order of `Batches` whatever the workers; corrupt files replaced."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bilateral.config import Data
from bilateral.data import load_folder, photograph_batches
from bilateral.data.batches import Batch, Batches
from bilateral.data.datasets import Split
from bilateral.data.photograph_batches import PhotographBatches
from bilateral.errors import UserError

CPU = torch.device("cpu")
CROPS = Data(augment="resized-crop-flip")
GREYS = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of 20 flat pictures; picture number n has the grey 5 n."""
    for number in range(40):
        file = tmp_path / "train" / "ab"[number // 20] / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20) if number % 2 else (16, 16), (GREYS * number,) * 3).save(file)
    (tmp_path / "val").mkdir()
    for name in "ab":
        (tmp_path / "val" / name).symlink_to(tmp_path / "train" / name)
    return tmp_path


def streamed(folder: Path) -> Split:
    return load_folder(folder, "train", 14, streamed=True)


def shown(batch: Batch) -> list[int]:
    """The numbers of the pictures that a batch shows."""
    greys = batch.pixels[:, 0, 8, 8]
    assert (batch.pixels == greys[:, None, None, None]).all()
    return (greys // GREYS).tolist()


def same(one: Batch, other: Batch) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def test_pictures_are_whole_and_squashed_with_their_aspects(folder: Path) -> None:
    made = PhotographBatches(streamed(folder), CROPS, 10, 3, CPU, workers=0)
    assert (made.batch_size, made.steps, len(made.labels)) == (10, 4, 40)
    for batch in made.epoch(0):
        assert batch.pixels.shape == (10, 3, 16, 16)  # 14 * 8 / 7
        assert batch.pixels.dtype == torch.uint8 and batch.pixels.is_contiguous()
        assert shown(batch) == batch.numbers.tolist()
        assert batch.labels.tolist() == [number // 20 for number in shown(batch)]
        assert batch.aspects is not None
        expected = [1.5 if number % 2 else 1.0 for number in shown(batch)]
        assert batch.aspects.tolist() == expected
    assert made.corrupt == []


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 3)])
def test_the_order_is_that_of_images_in_memory(folder: Path, rank: int, world: int) -> None:
    """Without a resized crop the batches are the very same."""
    kept = Batches(load_folder(folder, "train", 14), 12, 3, CPU, rank, world)
    plain = Data(augment="crop-flip")
    made = PhotographBatches(streamed(folder), plain, 12, 3, CPU, 0, rank, world)
    for epoch in (0, 1):
        for one, other in zip(kept.epoch(epoch), made.epoch(epoch), strict=True):
            assert same(one, other)
    numbers = torch.tensor([5, 1])
    assert torch.equal(kept.floats(numbers), made.floats(numbers))


def test_going_on_within_an_epoch_changes_nothing(folder: Path) -> None:
    made = PhotographBatches(streamed(folder), CROPS, 10, 3, CPU, workers=0)
    whole, rest = list(made.epoch(2)), list(made.epoch(2, first_step=3))
    assert len(rest) == 1 and same(rest[0], whole[3])


def test_workers_change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes, an epoch left early; the random state of this process stays as it was."""
    monkeypatch.setattr(photograph_batches, "PORTION", 4)
    (folder / "train" / "b" / "25.png").write_bytes(b"broken")
    alone = PhotographBatches(streamed(folder), CROPS, 10, 3, CPU, workers=0)
    made = PhotographBatches(streamed(folder), CROPS, 10, 3, CPU, workers=2)
    state = torch.get_rng_state()
    next(made.epoch(0))
    for worker in made._loader._iterator._workers:  # type: ignore[union-attr]
        assert os.getpgid(worker.pid) != os.getpgid(0)  # a terminal's Ctrl-C goes to the group
    for epoch in (1, 2):
        for one, other in zip(alone.epoch(epoch), made.epoch(epoch), strict=True):
            assert same(one, other)
    assert torch.equal(state, torch.get_rng_state())
    assert [file.name for file in made.corrupt] == ["25.png"]


def test_no_more_workers_than_cores_or_portions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workers(asked: int | None, batch_size: int, world: int = 1) -> int:
        split = streamed(folder)
        made = PhotographBatches(split, CROPS, batch_size, 3, CPU, asked, 0, world)
        return made._loader.num_workers

    monkeypatch.setattr(photograph_batches, "cores", lambda: 100)
    assert workers(99, 40) == 2  # 40 images are two portions
    monkeypatch.setattr(photograph_batches, "cores", lambda: 2)
    assert [workers(99, 4), workers(1, 4), workers(0, 4)] == [2, 1, 0]
    assert [workers(None, 4), workers(None, 4, world=2), workers(None, 4, world=4)] == [2, 1, 1]


def test_a_corrupt_file_is_replaced_by_the_next_of_its_class(folder: Path) -> None:
    for number in (7, 8, 19):
        file = folder / "train" / "a" / f"{number:02d}.png"
        file.write_bytes(file.read_bytes()[:40])
    made = PhotographBatches(streamed(folder), CROPS, 40, 3, CPU, workers=0)
    assert made.corrupt == []
    (batch,) = made.epoch(0)
    instead = {7: 9, 8: 9, 19: 0}
    assert shown(batch) == [instead.get(number, number) for number in batch.numbers.tolist()]
    assert batch.labels.tolist() == [number // 20 for number in shown(batch)]
    assert [file.name for file in made.corrupt] == ["07.png", "08.png", "19.png"]
    list(made.epoch(1))
    assert len(made.corrupt) == 3  # not counted again


def test_too_many_corrupt_files_stop_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(11):
        (folder / "train" / "a" / f"{number:02d}.png").write_bytes(b"broken")
    made = PhotographBatches(streamed(folder), CROPS, 40, 3, CPU, workers=0)
    with pytest.raises(UserError, match=r"^11 of 40 photographs cannot be read: .*png is") as told:
        list(made.epoch(0))
    assert "\n" not in str(told.value)
    monkeypatch.setattr(photograph_batches, "TOLERATED_SHARE", 11 / 40)
    assert len(list(made.epoch(0))) == 1
    monkeypatch.setattr(photograph_batches, "TOLERATED_SHARE", 0.0)
    monkeypatch.setattr(photograph_batches, "TOLERATED", 11)
    assert len(list(made.epoch(0))) == 1


def test_a_class_without_a_readable_image_stops_the_run(folder: Path) -> None:
    for number in range(3, 20):
        (folder / "train" / "a" / f"{number:02d}.png").unlink()
    split = streamed(folder)
    for number in range(3):
        (folder / "train" / "a" / f"{number:02d}.png").write_bytes(b"broken")
    made = PhotographBatches(split, CROPS, 23, 3, CPU, workers=0)
    with pytest.raises(UserError, match=r"^class a has no readable image: .*\.png is not"):
        list(made.epoch(0))


def test_a_crop_needs_a_square(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (9, 6)).save(tmp_path / name / f"{number}.png")
    split = load_folder(tmp_path, "train", None, streamed=True)
    with pytest.raises(UserError, match="9x6 is not a square: give --image-size"):
        PhotographBatches(split, CROPS, 2, 0, CPU, workers=0)
    batch = next(PhotographBatches(split, Data(augment="none"), 2, 0, CPU, 0).epoch(0))
    assert batch.pixels.shape == (2, 3, 6, 9) and batch.aspects is None
    assert np.array_equal(batch.pixels, np.zeros((2, 3, 6, 9)))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch's own, of its pinning thread
@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_batches_on_a_gpu_are_those_on_the_cpu(folder: Path) -> None:
    """With a CUDA context in this process and decoding workers beside it."""
    gpu = torch.device("cuda")
    torch.zeros(1, device=gpu)
    alone = PhotographBatches(streamed(folder), CROPS, 10, 3, CPU, workers=0)
    made = PhotographBatches(streamed(folder), CROPS, 10, 3, gpu, workers=2)
    for one, other in zip(alone.epoch(0), made.epoch(0), strict=True):
        assert other.pixels.is_cuda
        assert same(one, Batch(*(part.cpu() for part in other if part is not None)))
    numbers = torch.tensor([5, 1])
    # A GPU divides by 255 with another last bit.
    torch.testing.assert_close(alone.floats(numbers), made.floats(numbers.to(gpu)).cpu())
