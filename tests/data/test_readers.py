import dataclasses
import hashlib
import io
import json
import runpy
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFile

from bilateral.data.datasets import DATASETS, DatasetEntry
from bilateral.data.datasets_entry import SPLITS, Digests, Split, SplitName, in_canonical_order
from bilateral.data.readers import BinaryBatches, SpritePack, decode
from bilateral.errors import UserError

ROOT = Path(__file__).parents[2]
FORMS = ["python", "binary", "npm"]


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["archive", "folder", "parent"])
def test_every_form_gives_the_same_arrays(tiny: Any, tmp_path: Path, form: str, place: str) -> None:
    if place == "archive":
        source = tiny.archive(tmp_path / "a.tgz", form)
    else:
        source = write(tmp_path / "outer" / "inner", tiny.files(form))
        source = source.parent if place == "parent" else source
    arrays = decode(tiny.entry, source)
    for split in SPLITS:
        np.testing.assert_array_equal(arrays[split][0], tiny.pixels[split])
        np.testing.assert_array_equal(arrays[split][1], tiny.labels[split])
        assert arrays[split][1].dtype == np.uint8


@pytest.mark.parametrize("form", FORMS)
def test_altered_pixel(tiny: Any, tmp_path: Path, form: str) -> None:
    tiny.pixels["train"][3, 1, 2, 0] ^= 1
    source = tiny.archive(tmp_path / "a.tgz", form)
    expected = tiny.entry.digests["train"].pixels[:16]
    found = hashlib.sha256(tiny.pixels["train"].tobytes()).hexdigest()[:16]
    with pytest.raises(UserError) as caught:
        decode(tiny.entry, source)
    assert str(caught.value) == (
        f"{source} does not hold tiny: train pixels: "
        f"SHA-256 {expected}... expected, {found}... found"
    )


@pytest.mark.parametrize("form", FORMS)
def test_altered_label(tiny: Any, tmp_path: Path, form: str) -> None:
    tiny.labels["test"][0] = (tiny.labels["test"][0] + 1) % 10
    with pytest.raises(UserError, match=r"a\.tgz does not hold tiny: test labels: SHA-256"):
        decode(tiny.entry, tiny.archive(tmp_path / "a.tgz", form))


@pytest.mark.parametrize("form", FORMS)
def test_label_out_of_range(tiny: Any, tmp_path: Path, form: str) -> None:
    tiny.labels["train"][3] = 10
    with pytest.raises(UserError, match=r"some-folder/.*: label 0 to 9 expected, 10 found at"):
        decode(tiny.entry, tiny.archive(tmp_path / "a.tgz", form))


@pytest.mark.parametrize("form", FORMS)
def test_missing_file(tiny: Any, tmp_path: Path, form: str) -> None:
    files = tiny.files(form)
    gone = sorted(files)[1]
    del files[gone]
    source = write(tmp_path / "a", files)
    with pytest.raises(UserError, match=f"a is incomplete: {gone} missing"):
        decode(tiny.entry, source)


@pytest.mark.parametrize("form", FORMS)
def test_every_truncated_file_is_named(tiny: Any, tmp_path: Path, form: str) -> None:
    for number, (name, content) in enumerate(tiny.files(form).items()):
        files = {**tiny.files(form), name: content[: len(content) // 2]}
        source = write(tmp_path / str(number), files)
        with pytest.raises(UserError) as caught:
            decode(tiny.entry, source)
        assert str(source / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_batch_of_another_size(tiny: Any, tmp_path: Path) -> None:
    files = tiny.files("python")
    files["data_batch_2"] = files["test_batch"]
    with pytest.raises(UserError, match=r"data_batch_2: array \(2, 60\) expected, \(3, 60\) found"):
        decode(tiny.entry, write(tmp_path / "a", files))
    files = tiny.files("binary")
    files["data_batch_2.bin"] = files["test_batch.bin"]
    with pytest.raises(UserError, match=r"data_batch_2\.bin: 122 bytes expected, 183 found"):
        decode(tiny.entry, write(tmp_path / "b", files))


def test_nothing_of_it_there(tiny: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "a", {"readme": b""})
    with pytest.raises(UserError, match="does not hold tiny: none of data_batch_1, data_batch_1"):
        decode(tiny.entry, source)
    with pytest.raises(UserError, match="nowhere does not exist"):
        decode(tiny.entry, tmp_path / "nowhere")


@pytest.mark.parametrize(
    "labels", [[1] * 9, [1] * 11, {"1": 2}, 5, [[1]] * 10, ["1"] * 10, [1.0] * 10, [10**30] * 10,
               [-1] * 10, [True] * 10]
)  # fmt: skip
def test_json_labels(tiny: Any, tmp_path: Path, labels: Any) -> None:
    files = {**tiny.files("npm"), "train_lables.json": json.dumps(labels).encode()}
    with pytest.raises(UserError, match=r"train_lables\.json: .* expected, .* found"):
        decode(tiny.entry, write(tmp_path / "a", files))


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("size", [(21, 2), (20, 3), (5000, 5000), (12000, 12000), (60000, 60000)])
def test_picture_of_another_size_is_not_decoded(
    tiny: Any,
    tmp_path: Path,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(10)))
        + chunk(b"IEND", b"")
    )
    files = {**tiny.files("npm"), "data_batch_1.png": bomb}
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(UserError, match=r"data_batch_1\.png"):
        decode(tiny.entry, write(tmp_path / "a", files))
    assert not recwarn.list


def test_picture_of_another_mode_or_format(tiny: Any, tmp_path: Path) -> None:
    grey, jpeg = io.BytesIO(), io.BytesIO()
    Image.new("L", (20, 2)).save(grey, "PNG")
    Image.new("RGB", (20, 2)).save(jpeg, "JPEG")
    for number, content in enumerate((grey.getvalue(), jpeg.getvalue())):
        files = {**tiny.files("npm"), "data_batch_1.png": content}
        with pytest.raises(UserError, match=r"data_batch_1\.png"):
            decode(tiny.entry, write(tmp_path / str(number), files))


def sprites(pixels: npt.NDArray[np.uint8], tiles: int = 100) -> bytes:
    """A sprite made tile by tile, unlike the reader's one reshape."""
    count, height, width, _ = pixels.shape
    sheet = Image.new("RGB", (tiles * width, -(-count // tiles) * height))
    for number, image in enumerate(pixels):
        sheet.paste(Image.fromarray(image), (number % tiles * width, number // tiles * height))
    out = io.BytesIO()
    sheet.save(out, "WEBP", lossless=True, exact=True, method=0)
    return out.getvalue()


def npy(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.fixture(scope="module")
def pack() -> tuple[DatasetEntry, dict[str, bytes], dict[SplitName, tuple[Any, Any]]]:
    """A pack whose training set takes two sprites, the second with a padded row."""
    random = np.random.default_rng(1)
    counts: dict[SplitName, int] = {"train": 10_103, "test": 7}
    arrays = {
        split: (
            random.integers(0, 256, (count, 2, 3, 3), dtype=np.uint8),
            random.integers(0, 10, count, dtype=np.uint8),
        )
        for split, count in counts.items()
    }
    entry = dataclasses.replace(
        DATASETS["svhn"],
        image_shape=(2, 3, 3),
        counts=counts,
        digests={
            split: Digests(*(hashlib.sha256(array.tobytes()).hexdigest() for array in parts))
            for split, parts in arrays.items()
        },
    )
    files = {
        "train-00.webp": sprites(arrays["train"][0][:10_000]),
        "train-01.webp": sprites(arrays["train"][0][10_000:]),
        "test-00.webp": sprites(arrays["test"][0]),
        "train-labels.npy": npy(arrays["train"][1]),
        "test-labels.npy": npy(arrays["test"][1]),
    }
    return entry, files, arrays


def test_sprite_pack(pack: Any, tmp_path: Path) -> None:
    entry, files, arrays = pack
    assert set(SpritePack().names(entry)) == set(files)
    decoded = decode(entry, write(tmp_path / "a", files))
    for split in SPLITS:
        for found, expected in zip(decoded[split], arrays[split], strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_pack_written_for_a_lent_machine_is_read_again(pack: Any, tmp_path: Path) -> None:
    """`studies/lease/sprites.py`: two folders, put together on the other machine."""
    entry, files, arrays = pack
    write_sprites = runpy.run_path(str(ROOT / "studies/lease/sprites.py"))["write_sprites"]
    halves = tmp_path / "first", tmp_path / "second"
    for half in halves:
        half.mkdir()
    splits = {split: Split(*arrays[split], entry.classes) for split in SPLITS}
    write_sprites(entry, splits, *halves)
    together = {file.name: file.read_bytes() for half in halves for file in half.iterdir()}
    assert set(together) == set(files)
    assert len(list(halves[0].iterdir())) == 2, "of three sprites"
    decoded = decode(entry, write(tmp_path / "whole", together))
    for split in SPLITS:
        for found, expected in zip(decoded[split], arrays[split], strict=True):
            np.testing.assert_array_equal(found, expected)


def test_every_set_of_small_colour_pictures_is_read_from_sprites() -> None:
    readers = {name: DATASETS[name].readers for name in ("cifar10", "cifar100", "svhn")}
    assert [name for name, known in readers.items() if SpritePack() not in known] == []


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.full(7, 10, np.uint8), "label 0 to 9 expected, 10 found at image 0"),
        (np.zeros(6, np.uint8), "7 labels expected, 6 found"),
        (np.zeros((7, 1), np.uint8), r"label 0 to 9 expected, list found"),
        (np.zeros((), np.uint8), "7 labels expected, none found"),
        (np.array([{}], dtype=object), "not an .npy file of labels"),
    ],
)
def test_sprite_pack_labels(pack: Any, tmp_path: Path, labels: Any, message: str) -> None:
    entry, files, _ = pack
    source = write(tmp_path / "a", {**files, "test-labels.npy": npy(labels)})
    with pytest.raises(UserError, match=f"test-labels.npy.*{message}"):
        decode(entry, source)


def test_canonical_order_does_not_depend_on_the_source(tiny: Any, tmp_path: Path) -> None:
    """The form of CIFAR-100: one batch a split, and no order that sources agree on."""
    tiny.pixels["train"][4] = tiny.pixels["train"][7]
    tiny.labels["train"][[4, 7]] = 2, 1
    ordered = {
        split: in_canonical_order(tiny.pixels[split], tiny.labels[split]) for split in SPLITS
    }
    entry = dataclasses.replace(
        tiny.entry,
        canonical_order=True,
        digests={
            split: Digests(
                *(hashlib.sha256(array.tobytes()).hexdigest() for array in ordered[split])
            )
            for split in SPLITS
        },
        readers=(BinaryBatches(train=("train.bin",), test=("test.bin",), label_bytes=2),),
    )
    for seed in range(3):
        files = {}
        for split in SPLITS:
            order = np.random.default_rng(seed).permutation(entry.counts[split])
            labels = tiny.labels[split][order]
            rows = tiny.rows(tiny.pixels[split][order])
            files[f"{split}.bin"] = np.hstack(
                [99 - labels[:, None], labels[:, None], rows]
            ).tobytes()
        decoded = decode(entry, write(tmp_path / str(seed), files))
        for split in SPLITS:
            for found, expected in zip(decoded[split], ordered[split], strict=True):
                np.testing.assert_array_equal(found, expected)


def hundred_files(form: str, pixels: Any, fine: Any, coarse: Any, python2: Any) -> Any:
    """A split of CIFAR-100 as the official archive of that form, or a pack of sprites, has it."""
    rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    if form == "binary":
        return {".bin": np.hstack([coarse[:, None], fine[:, None], rows]).tobytes()}
    if form == "sprites":
        return {"-00.webp": sprites(pixels), "-labels.npy": npy(fine)}
    batch = {
        b"filenames": [b"bos_taurus_s_000507.png"] * len(pixels),
        b"batch_label": b"training batch 1 of 1",
        b"fine_labels": fine.tolist(),
        b"coarse_labels": coarse.tolist(),
        b"data": python2.array(rows),
    }
    return {"": python2.dump(batch)}


def test_every_form_of_cifar100(tmp_path: Path, python2: Any) -> None:
    """Fine labels count, coarse ones do not, and each form's own order of images is undone."""
    random = np.random.default_rng(3)
    counts: dict[SplitName, int] = {"train": 120, "test": 20}
    pixels = {s: random.integers(0, 256, (n, 4, 5, 3), dtype=np.uint8) for s, n in counts.items()}
    fine = {s: random.permutation(n).astype(np.uint8) % 100 for s, n in counts.items()}
    keys = {s: [hashlib.sha256(image.tobytes()).digest() for image in pixels[s]] for s in SPLITS}
    order = {s: sorted(range(counts[s]), key=keys[s].__getitem__) for s in SPLITS}
    ordered = {s: (pixels[s][order[s]], fine[s][order[s]]) for s in SPLITS}
    entry = dataclasses.replace(
        DATASETS["cifar100"],
        image_shape=(4, 5, 3),
        counts=counts,
        digests={
            split: Digests(*(hashlib.sha256(part.tobytes()).hexdigest() for part in parts))
            for split, parts in ordered.items()
        },
    )
    for form in ("python", "binary", "sprites"):
        files = {"meta": b"", "file.txt~": b"", "fine_label_names.txt": b"apple"}
        for split in SPLITS:
            mixed = random.permutation(counts[split])
            coarse = random.integers(0, 20, counts[split], dtype=np.uint8)
            parts = hundred_files(form, pixels[split][mixed], fine[split][mixed], coarse, python2)
            files |= {f"{split}{ending}": content for ending, content in parts.items()}
        decoded = decode(entry, write(tmp_path / form / f"cifar-100-{form}", files).parent)
        for split in SPLITS:
            for found, expected in zip(decoded[split], ordered[split], strict=True):
                np.testing.assert_array_equal(found, expected)
