"""The digits that come with the package: 1,797 real handwritten digits of 8x8 grey pixels.

They are the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
C. Kaynak (UCI Machine Learning Repository, 1998, CC BY 4.0), as `sklearn.datasets.load_digits`
gives them: a value v of 0 to 16 is stored as round(v * 255 / 16). The 360 test images are those
of `train_test_split(arange(1797), test_size=360, stratify=labels, random_state=0)`; within a
split the images keep their order.
"""

from pathlib import Path
from typing import Any

import numpy.typing as npt

from bilateral.arrays import read_npz
from bilateral.data.datasets_entry import SplitName
from bilateral.errors import UserError

DIGITS_FILE = Path(__file__).with_name("digits.npz")


def read_digits(
    split: SplitName, file: Path | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Pixels and labels as the file holds them."""
    file = file or DIGITS_FILE
    try:
        arrays = read_npz(file)
        return arrays[f"{split}-pixels"], arrays[f"{split}-labels"]
    except (UserError, KeyError) as error:
        raise UserError(f"{file} is damaged: {error}; install the package again") from None
