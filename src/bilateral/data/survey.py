"""A folder of pictures summed up from its names and some headers; none is decoded; no torch."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from bilateral.data.pictures import picture_size
from bilateral.data.readers_folder import files_of_split
from bilateral.errors import UserError

SAMPLE = 200
"""Pictures whose headers are read, evenly over the folder: of a million, all would take minutes."""


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
    names = [name for images in files.values() for name in images]
    step = -(-len(names) // SAMPLE)
    sizes = [size for name in names[::step] if (size := picture_size(path.expanduser() / name))]
    if not sizes:
        raise UserError(f"no picture in {path} can be read")
    side = median_low([min(size) for size in sizes])
    same = sizes[0] if len(set(sizes)) == 1 else None
    test = files_of_split(path.expanduser(), "test")
    return Survey(len(files), len(names), side, same, sum(map(len, test.values())))
