"""A folder of pictures summed up from its names and some headers; none is decoded; no torch.

Also whether any of its pictures for test is a copy of one for training.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from bilateral.data.datasets_entry import SplitName
from bilateral.data.pictures import picture_size
from bilateral.data.readers_folder import files_of_split
from bilateral.errors import UserError
from bilateral.storage import digest_of

SAMPLE = 200
"""Pictures whose headers are read, evenly over the folder: of a million, all would take minutes."""

COMPARED = 200_000
"""With more pictures for training none are compared: asking each for its size takes minutes."""
END = 2**12
"""Bytes at the end of a file that are looked at before all of it is."""


@dataclass(frozen=True)
class Survey:
    """The training pictures of a folder."""

    classes: int
    images: int
    side: int
    """The median of the pictures' shorter sides, in pixels."""
    size: tuple[int, int] | None
    """Width and height, where all sampled pictures have the same."""
    test_images: int = 0


def survey_folder(path: Path) -> Survey:
    """Look at a folder as `load_folder` will read it for training."""
    files = files_of_split(path.expanduser(), "train")
    if len(files) < 2:
        raise UserError(
            f"folder:{path} has one class, {', '.join(files)}: give a folder with a subfolder for "
            "each of two or more classes; perhaps this one is a level too high or too low"
        )
    names = [name for images in files.values() for name in images]
    step = -(-len(names) // SAMPLE)
    sizes = [size for name in names[::step] if (size := picture_size(path.expanduser() / name))]
    if not sizes:
        raise UserError(f"no picture in {path} can be read")
    side = median_low([min(size) for size in sizes])
    same = sizes[0] if len(set(sizes)) == 1 else None
    test = files_of_split(path.expanduser(), "test")
    return Survey(len(files), len(names), side, same, sum(map(len, test.values())))


def shared_pictures(trained: str, tested: str) -> tuple[str, ...]:
    """That pictures for test are for training too, byte for byte, under whatever name or class.

    `trained` and `tested` are data as they are named; where one is no folder nothing is said.
    """
    if not (trained.startswith("folder:") and tested.startswith("folder:")):
        return ()
    train: list[Path] = []
    with suppress(UserError):  # what a run was trained on may be gone
        train = _pictures(trained, "train")
    if not train or len(train) > COMPARED:
        return ()
    every = test = _pictures(tested, "test")
    for key in (_size, _end, digest_of):
        train, test = _alike(train, test, key)
    if not test:
        return ()
    named = ", ".join("/".join(file.parts[-2:]) for file in test[:3])
    return (
        f"{len(test):,} of the {len(every):,} test pictures in {tested} are copies of pictures for "
        f"training ({named}{', ...' if len(test) > 3 else ''}): figures on them flatter the model",
    )


def _pictures(data: str, split: SplitName) -> list[Path]:
    path = Path(data.removeprefix("folder:")).expanduser()
    return [path / name for names in files_of_split(path, split).values() for name in names]


def _alike(
    train: Iterable[Path], test: Iterable[Path], key: Callable[[Path], object]
) -> tuple[list[Path], list[Path]]:
    """The files of both whose key occurs in both; one that cannot be read is like no other."""

    def found(file: Path) -> object:
        try:
            return key(file)
        except OSError:
            return file

    keys = [{file: found(file) for file in files} for files in (train, test)]
    both = set(keys[0].values()) & set(keys[1].values())
    first, second = ([file for file, one in known.items() if one in both] for known in keys)
    return first, second


def _size(file: Path) -> int:
    return file.stat().st_size


def _end(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(-min(END, _size(file)), 2)
        return opened.read()
