import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilateral.data.readers_pickle import read_batch
from bilateral.errors import UserError

ROWS = np.arange(12, dtype=np.uint8).reshape(2, 6)


def test_reads_what_python_2_wrote(python2: Any) -> None:
    content = python2.dump({b"data": python2.array(ROWS), b"fine_labels": [7, 3]})
    rows, labels = read_batch(content, "fine_labels", "train")
    assert rows.dtype == np.uint8
    np.testing.assert_array_equal(rows, ROWS)
    assert labels == [7, 3]


def test_the_test_writer_writes_what_numpy_reads(python2: Any) -> None:
    """numpy itself, which still reads pickles of Python 2, is the oracle of `python2`."""
    content = python2.dump({b"data": python2.array(ROWS), b"labels": [7, 3]})
    names = {operation.name for operation, _, _ in pickletools.genops(content)}
    assert {"SHORT_BINSTRING", "GLOBAL", "REDUCE", "BUILD"} <= names
    moved = content.replace(b"cnumpy.core.multiarray\n", b"cnumpy._core.multiarray\n")
    np.testing.assert_array_equal(pickle.loads(moved, encoding="bytes")[b"data"], ROWS)


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_payload_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made-by-payload"
    content = pickle.dumps({"data": Payload(target), "labels": [1]}, protocol=protocol)
    with pytest.raises(UserError, match=r"data_batch_1 is not .*mkdir, which is refused"):
        read_batch(content, "labels", "data_batch_1")
    assert not target.exists()
    pickle.loads(content)
    assert target.exists(), "the payload is a real one"


@pytest.mark.parametrize(
    "name",
    [
        "builtins.eval",
        "__builtin__.eval",
        "numpy.load",
        "numpy.core.multiarray.scalar",
        "os.system",
    ],
)
def test_other_names_are_refused(python2: Any, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    content = python2.dump({b"data": python2.Name(module, attribute), b"labels": []})
    with pytest.raises(UserError, match=f"asks for {name}, which is refused"):
        read_batch(content, "labels", "x")


def test_stand_ins_cannot_be_altered(python2: Any) -> None:
    """BUILD on a class, not an instance, would otherwise set its attributes."""
    state = b"}X\x05\x00\x00\x00stateK\x01s"
    content = b"\x80\x02cnumpy\nndarray\n" + state + b"b."
    with pytest.raises(UserError, match="not a CIFAR batch"):
        read_batch(content, "labels", "x")
    test_reads_what_python_2_wrote(python2)


@pytest.mark.parametrize("code", [b"O8", b"u2", b"f8", "u1"])
def test_arrays_of_anything_but_bytes(python2: Any, code: Any) -> None:
    content = python2.dump({b"data": python2.array(ROWS, code), b"labels": [1, 2]})
    with pytest.raises(UserError, match="not an array of bytes"):
        read_batch(content, "labels", "x")


@pytest.mark.parametrize("shape", [(2, 7), (-2, -6), (12,), (2, 3, 2), (0, 0), "xy", None])
def test_arrays_of_a_false_shape(python2: Any, shape: Any) -> None:
    array = python2.array(ROWS)
    array.state = (1, shape, *array.state[2:])
    with pytest.raises(UserError, match="not an array of bytes"):
        read_batch(python2.dump({b"data": array, b"labels": [1, 2]}), "labels", "x")


@pytest.mark.parametrize(
    "value", [[], {}, {b"labels": [1]}, {b"data": b"raw", b"labels": [1]}, {b"labels": b"12"}]
)
def test_other_contents(python2: Any, value: Any) -> None:
    with pytest.raises(UserError, match="x is not a CIFAR batch"):
        read_batch(python2.dump(value), "labels", "x")


def test_every_truncation_is_one_line(python2: Any) -> None:
    content = python2.dump({b"data": python2.array(ROWS), b"labels": [7, 3]})
    for length in range(len(content)):
        with pytest.raises(UserError, match="x is not a CIFAR batch") as caught:
            read_batch(content[:length], "labels", "x")
        assert "\n" not in str(caught.value)
