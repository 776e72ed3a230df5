import io
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bilateral.data.readers import decode
from bilateral.data.readers_mat import read_arrays
from bilateral.errors import UserError

RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 256, (4, 5, 3, 7), dtype=np.uint8)
Y = RANDOM.integers(1, 11, (7, 1), dtype=np.uint8)
SHAPES = {"X": X.shape, "y": Y.shape}


def saved(packed: bool, **variables: Any) -> bytes:
    """What scipy, whose reader everybody uses for SVHN, writes."""
    scipy_io: Any = pytest.importorskip("scipy.io")
    out = io.BytesIO()
    scipy_io.savemat(out, variables, do_compression=packed)
    return out.getvalue()


def refusal(content: bytes) -> str:
    with pytest.raises(UserError) as caught:
        read_arrays(content, SHAPES, "some.mat")
    message = str(caught.value)
    assert message.startswith("some.mat") and "\n" not in message
    return message


@pytest.mark.parametrize("packed", [False, True])
def test_what_scipy_writes(packed: bool) -> None:
    extra = {"note": "text", "cube": np.zeros((2, 3, 1)), "struct": {"X": 1}}
    for variables in ({"X": X, "y": Y}, {**extra, "y": Y, "X": X}):
        arrays = read_arrays(saved(packed, **variables), SHAPES, "some.mat")
        np.testing.assert_array_equal(arrays["X"], X)
        np.testing.assert_array_equal(arrays["y"], Y)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("flags", [6, 9])
def test_both_byte_orders_and_bytes_of_another_class(
    mat: Any, order: str, packed: bool, flags: int
) -> None:
    """`y` of three images lies in its tag; class 6 is double, kept as bytes by MATLAB."""
    few = {"X": X[..., :3], "y": Y[:3]}
    variables = [mat.variable(name, few[name], order, flags, packed=packed) for name in few]
    content = mat.file(*variables, order=order)
    arrays = read_arrays(content, {name: few[name].shape for name in few}, "some.mat")
    for name, expected in few.items():
        np.testing.assert_array_equal(arrays[name], expected)


def test_scipy_reads_what_these_tests_write(mat: Any) -> None:
    scipy_io: Any = pytest.importorskip("scipy.io")
    for order in "<>":
        variables = [mat.variable("X", X, order, packed=True), mat.variable("y", Y[:3], order)]
        found = scipy_io.loadmat(io.BytesIO(mat.file(*variables, order=order)))
        np.testing.assert_array_equal(found["X"], X)
        np.testing.assert_array_equal(found["y"], Y[:3])


def test_ten_is_the_digit_zero(house: Any, tmp_path: Any) -> None:
    arrays = decode(house.entry, house.folder(tmp_path / "official"))
    assert house.labels["train"].tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    for split, (pixels, labels) in arrays.items():
        np.testing.assert_array_equal(pixels, house.pixels[split])
        np.testing.assert_array_equal(labels, house.labels[split])
        assert pixels.flags.c_contiguous and labels.dtype == np.uint8


@pytest.mark.parametrize("label", [0, 11, 255])
def test_label_out_of_range(house: Any, mat: Any, tmp_path: Any, label: int) -> None:
    labels = np.array([[1], [label], [3]], dtype=np.uint8)
    images = mat.variable("X", house.pixels["test"].transpose(1, 2, 3, 0))
    house.files["test_32x32.mat"] = mat.file(images, mat.variable("y", labels))
    house.entry.files.clear()
    with pytest.raises(UserError, match=f"test_32x32.*: label 1 to 10 expected, {label} found at"):
        decode(house.entry, house.folder(tmp_path / "official"))


def test_other_arrays_are_refused(mat: Any) -> None:
    good = mat.variable("y", Y)
    assert "no header" in refusal(b"")
    assert "no header" in refusal(bytes(1000))
    hdf5 = mat.file(good, version=0x0200)
    assert "version 0x0100 expected, 0x0200 found" in refusal(hdf5)
    assert "no variable X and y" in refusal(mat.file())
    assert "no variable X" in refusal(mat.file(good))
    shape = r"X of shape (4, 5, 3, 7) expected, (4, 5, 3, 6) found"
    assert shape in refusal(mat.file(mat.variable("X", X[..., :6]), good))
    assert "bytes of type 2 expected, 9 found" in refusal(mat.file(mat.variable("X", X, kind=9)))
    assert "not an array of real numbers" in refusal(mat.file(mat.variable("X", X, flags=0x0809)))
    for other in (1, 2, 3, 4, 5, 16, 17):
        assert "not an array of real numbers" in refusal(
            mat.file(mat.variable("X", X, flags=other))
        )
    assert "variable of type 14 expected, 2 found" in refusal(mat.file(mat.element(2, bytes(64))))
    double = saved(False, X=X.astype(float), y=Y)
    assert "bytes of type 2 expected, 9 found" in refusal(double)


def test_unpacking_is_bounded_over_the_whole_file(
    mat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one variable nor many together give much more than the arrays take."""
    given: list[int] = []
    make = zlib.decompressobj

    class Counting:
        def __init__(self) -> None:
            self.stream = make()

        def decompress(self, data: Any, limit: int) -> bytes:
            assert limit > 0, "zlib takes 0 for no limit"
            given.append(len(part := self.stream.decompress(data, limit)))
            return part

        @property
        def eof(self) -> bool:
            return self.stream.eof

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    big = mat.variable("other", np.zeros((1, 10**7), np.uint8), packed=True)
    small = mat.variable("other", np.zeros((1, 1000), np.uint8), packed=True)
    for bomb in (mat.file(big), mat.file(*[small] * 1000)):
        given.clear()
        assert "it unpacks to more than its arrays take" in refusal(bomb)
        assert sum(given) <= X.size + Y.size + 4097


def test_false_sizes(mat: Any) -> None:
    """A size that passes the end of the file, in a tag or in a shape."""
    content = mat.file(mat.variable("X", X), mat.variable("y", Y))
    for size in (len(content), 2**31, 2**32 - 1):
        damaged = content[:132] + size.to_bytes(4, "little") + content[136:]
        assert f"it is cut short, {size} bytes expected" in refusal(damaged)
    start = content.index(np.array(X.shape, "<i4").tobytes())
    for size in (-1, 2**31 - 1):
        damaged = content[:start] + size.to_bytes(4, "little", signed=True) + content[start + 4 :]
        assert f"expected, ({size}, 5, 3, 7) found" in refusal(damaged)
    assert "a tag of 5 bytes" in refusal(mat.file((5 << 16 | 1).to_bytes(4, "little") + bytes(4)))


def test_packed_variable_without_its_checksum(mat: Any) -> None:
    """All of the array is there, so that only zlib's own end is missing."""
    stream = zlib.compress(mat.variable("X", X))[:-4]
    packed = (15).to_bytes(4, "little") + len(stream).to_bytes(4, "little") + stream
    assert "a packed variable is cut short" in refusal(mat.file(packed, mat.variable("y", Y)))


@pytest.mark.parametrize("packed", [False, True])
def test_every_truncation_is_one_line(mat: Any, packed: bool) -> None:
    content = mat.file(*(mat.variable(n, a, packed=packed) for n, a in (("X", X), ("y", Y))))
    read_arrays(content, SHAPES, "some.mat")
    for length in range(len(content) - 1 if packed else len(content) - 8):
        refusal(content[:length])


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    packed=st.booleans(),
    order=st.sampled_from("<>"),
    damage=st.lists(
        st.tuples(
            st.integers(0, 700) | st.integers(124, 200),
            st.binary(min_size=1, max_size=4)
            | st.sampled_from([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4)]),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_damage_is_refused_in_one_line_or_harmless(
    mat: Any, packed: bool, order: str, damage: list[tuple[int, bytes]]
) -> None:
    """Whatever is overwritten, arrays of the right shape come out or one line is said."""
    variables = (mat.variable(n, a, order, packed=packed) for n, a in (("y", Y), ("X", X)))
    content = bytearray(mat.file(*variables, order=order))
    for place, written in damage:
        content[place : place + len(written)] = written
    try:
        arrays = read_arrays(bytes(content), SHAPES, "some.mat")
    except UserError as error:
        assert str(error).startswith("some.mat") and "\n" not in str(error)
    else:
        assert {name: array.shape for name, array in arrays.items()} == SHAPES
