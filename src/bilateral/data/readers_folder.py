"""A user's own images: a folder of class folders, in memory or, if too large for it, streamed.

`PATH/<class>/*` is one set, of which a tenth of each class is held out by the names of class and
file; `PATH/train/` and `PATH/val/` (or `test/`) of class folders are used as they are.
"""

from collections.abc import Container
from hashlib import sha256
from math import nextafter
from os import fsencode
from pathlib import Path

import numpy as np

from bilateral.config import LARGEST_SIDE
from bilateral.data.datasets_entry import Split, SplitName
from bilateral.data.photographs import Photographs
from bilateral.data.pictures import FORMATS, UNREAD
from bilateral.errors import UserError
from bilateral.runs import RunFolder

MEMORY_LIMIT = 2**30
"""Bytes of decoded pixels; a split beyond them is streamed."""


def load_folder(
    path: Path,
    split: SplitName,
    image_size: int | None,
    streamed: bool | None = None,
) -> Split:
    """A split of a folder of images as RGB.

    With `image_size` the shorter side is resized to it and the centre cropped; without it all
    images must have one size. `streamed` says whether its pixels are `Photographs` or in memory;
    None decides by their size.
    """
    path = path.expanduser()
    if image_size is not None and not 1 <= image_size <= LARGEST_SIDE:
        raise UserError(f"--image-size {image_size}: must be 1 to {LARGEST_SIDE} pixels")
    files = files_of_split(path, split)
    labels = [label for label, images in enumerate(files.values()) for _ in images]
    names = [name for images in files.values() for name in images]
    photographs = Photographs.under(path, names, image_size)
    if streamed is None:
        streamed = photographs.nbytes > MEMORY_LIMIT
    pixels = photographs if streamed else photographs[:]
    return Split(pixels, np.array(labels, dtype=np.int64), tuple(files), _digest_of(names))


def training_files(path: Path) -> str:
    """`Split.files` of a folder's training pictures; none of them is read."""
    files = files_of_split(path.expanduser(), "train")
    return _digest_of([name for images in files.values() for name in images])


def _digest_of(names: list[str]) -> str:
    """The digest of class and file names, which decide what a picture is used for."""
    listed = b"\0".join(fsencode("/".join(Path(name).parts[-2:])) for name in names)
    return sha256(listed).hexdigest()


def files_of_split(path: Path, split: SplitName) -> dict[str, list[str]]:
    """The image files of each class, by their names within `path`."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: folder:PATH needs one with a subfolder per class")
    train = path / "train" if _is_set(path / "train") else None
    test = _test_set(path)
    if test is None:
        files = _files_by_class(train or path, path)
        if train is not None:
            _refuse_unnamed_test_set(path, files.keys())
        return _hold_out(files, split)
    if train is None:
        if split == "train":
            raise UserError(f"{path} has {test.name}/ but no train/ with class folders")
        return _files_by_class(test, path)
    both = {"train": _files_by_class(train, path), "test": _files_by_class(test, path)}
    different = sorted(both["train"].keys() ^ both["test"].keys())
    if different:
        shown = ", ".join(different[:5]) + (", ..." if len(different) > 5 else "")
        raise UserError(f"{train} and {test} have different classes: {shown}")
    return both[split]


def _refuse_unnamed_test_set(path: Path, classes: Container[str]) -> None:
    """Refuse `valid/` or `Test/` beside `train/`: a tenth would be held out in its place."""
    for beside in _folders(path):
        if beside.name != "train" and any(inner.name in classes for inner in _folders(beside)):
            raise UserError(
                f"{beside} has classes of {path / 'train'} and would be left out: rename it val or "
                "test to have it attacked, or move it away"
            )


def has_test_set(path: Path) -> bool:
    """Whether a folder has its own test pictures; if not, a tenth of each class is held out."""
    return _test_set(path.expanduser()) is not None


def _test_set(path: Path) -> Path | None:
    return next((path / name for name in ("val", "test") if _is_set(path / name)), None)


def _folders(path: Path) -> list[Path]:
    return sorted(inner for inner in path.iterdir() if inner.is_dir() and inner.name[0] != ".")


def _is_set(path: Path) -> bool:
    """Whether `path` holds class folders (a class may itself be called train)."""
    return path.is_dir() and bool(_folders(path))


def location(name: str) -> str:
    """A data set's name, or `folder:` and where it lies, however its path was written."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{Path(path).expanduser().resolve()}" if colon else name


def same_test_pictures(folder: RunFolder, name: str) -> None:
    """Refuse a run whose folder had other pictures for test when it was trained."""
    kind, _, path = name.partition(":")
    if kind == "folder" and folder.former_split and not has_test_set(Path(path)):
        raise UserError(
            f"{folder.path} was trained by an older version that chose the test pictures of {name} "
            f"by {folder.former_split}; it may have been trained on today's test pictures: train "
            "again under another --name"
        )


def _files_by_class(path: Path, root: Path) -> dict[str, list[str]]:
    prefix = path.relative_to(root)
    files = {
        folder.name: sorted(str(prefix / folder.name / name) for name in _pictures(folder))
        for folder in _folders(path)
    }
    if not files:
        raise UserError(f"{path} holds no class folders")
    empty = [name for name, images in files.items() if not images]
    if empty:
        raise UserError(f"{path / empty[0]} holds no images ({', '.join(FORMATS)})")
    return files


def _pictures(folder: Path) -> list[str]:
    """The names of a class's pictures; a class that would be read in part is refused."""
    seen = _visible(folder)
    unread = [file for file in seen if file.suffix.lower() in UNREAD]
    below = [
        file for inner in seen if inner.suffix.lower() not in FORMATS for file in _below(inner)
    ]
    if left_out := [*unread, *below]:
        raise UserError(
            f"{min(left_out)} would be left out: a class is its {', '.join(FORMATS)} files, and "
            "none in folders below it"
        )
    return [file.name for file in seen if file.suffix.lower() in FORMATS]


def _visible(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.name[0] != "."]


def _below(path: Path) -> list[Path]:
    """Pictures in a folder and in those below it; none where the path is no folder."""
    inner = _visible(path) if path.is_dir() else []
    found = [file for file in inner if file.suffix.lower() in (*FORMATS, *UNREAD)]
    if path.is_symlink():  # which may lead back to where it lies
        return found
    return found + [file for folder in inner for file in _below(folder)]


def _hold_out(files: dict[str, list[str]], split: SplitName) -> dict[str, list[str]]:
    """About a tenth of each class, at least one image, is `test`; the rest is `train`."""
    chosen = {}
    for name, images in files.items():
        if len(images) < 2:
            raise UserError(f"class {name} has one image: a tenth cannot be held out for testing")
        places = {image: _place(image) for image in images}
        first, *_, last = sorted(places.values())
        # At least one on either side, whatever the names are.
        limit = min(max(0.1, nextafter(first, 1.0)), last)
        chosen[name] = [image for image in images if (places[image] < limit) == (split == "test")]
    return chosen


def _place(image: str) -> float:
    """A number in [0, 1) that follows from a file's class and name alone.

    It is the same for every run, so no run trains on the test pictures of another, and it stays
    when pictures are added, where a tenth by count would move some from one side to the other. Only
    the single test picture of a small class that has none below a tenth may change. Without the
    class in it, all classes of 000.png, 001.png and so on would share one draw.
    """
    named = "/".join(Path(image).parts[-2:])
    return int.from_bytes(sha256(fsencode(named)).digest()[:6]) / 2**48
