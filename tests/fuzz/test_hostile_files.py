"""Attacks by files, one by one: payloads, bombs, absurd sizes, pictures of a billion pixels."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formats_data import ENTRY, TINY, WRITERS
from formats_runs import RUN
from PIL import Image

from bilateral import reading
from bilateral.arrays import array_of, read_npz
from bilateral.data import archives
from bilateral.data.archives import read_members
from bilateral.data.pictures import read_picture
from bilateral.data.readers import decode
from bilateral.data.readers_mat import read_arrays
from bilateral.data.readers_pickle import read_batch
from bilateral.errors import UserError
from bilateral.evaluation.target import trained_model
from bilateral.models import build_model
from bilateral.models.own_code import source_digest
from bilateral.paper.pages import read_rows
from bilateral.results import AttackFile
from bilateral.runs import RunFolder
from bilateral.training.checkpoint import read_checkpoint, write_checkpoint
from bilateral.weights import read_about, read_weights, write_weights

CPU = torch.device("cpu")
ABOUT = {"classes": list("0123456789"), "channels": 1, "image_size": [8, 8]}
STATE: dict[str, Any] = {
    "schema": 2,
    "model": {"w": torch.zeros(4)},
    "averaged": None,
    "optimiser": {},
    "step": 0,
    "seconds": 0.0,
    "sums": [0.0],
    "about": {},
}


class Payload:
    """Unpickled it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def planted(tmp_path: Path) -> Any:
    """A payload, which must not have run when the test ends."""
    target = tmp_path / "made-by-a-payload"
    yield Payload(target)
    assert not target.exists()


def test_a_planted_payload_is_a_real_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "made")))
    assert (tmp_path / "made").is_dir()


@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoint_with_a_payload(tmp_path: Path, planted: Payload, zipped: bool) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({**STATE, "about": planted}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged"):
        read_checkpoint(path, CPU)


@pytest.mark.parametrize("packed", [True, False])
def test_npz_with_a_payload(tmp_path: Path, planted: Payload, packed: bool) -> None:
    path = tmp_path / "a.npz"
    objects = np.array([planted], dtype=object)
    (np.savez_compressed if packed else np.savez)(path, numbers=objects)
    with pytest.raises(UserError, match=r"a\.npz is damaged.*not numbers or text"):
        read_npz(path)


def test_data_sets_with_a_payload(tmp_path: Path, planted: Payload) -> None:
    files = TINY.files("python")
    files["data_batch_3"] = pickle.dumps({"data": planted, "labels": [1, 2]})
    archive = WRITERS.tar(tmp_path / "a.tgz", files, "batches")
    with pytest.raises(UserError, match="mkdir, which is refused"):
        decode(ENTRY, archive)


def rewritten(path: Path, change: Any, packing: int = zipfile.ZIP_STORED) -> None:
    """A checkpoint whose pickle is another."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", packing) as new:
        for member in old.infolist():
            data = old.read(member)
            new.writestr(member.filename, change(data) if "data.pkl" in member.filename else data)
    path.write_bytes(out.getvalue())


def nested_key() -> bytes:
    """A dict of which one key would be hashed 2 ** 64 times."""
    levels = b"".join(
        b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(64)
    )
    return b"\x80\x02}K\x01\x85q\x00" + levels + b"K\x01s."


def test_a_key_that_takes_for_ever_to_hash(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, STATE)
    read_checkpoint(path, CPU)
    rewritten(path, lambda data: nested_key())
    with pytest.raises(UserError, match="a tuple is used twice"):
        read_checkpoint(path, CPU)
    with pytest.raises(UserError, match="a key that is not text"):
        read_batch(nested_key(), "labels", "x")


def test_checkpoint_whose_pickle_claims_a_longer_storage_than_there_is(tmp_path: Path) -> None:
    """Unmapped, torch would read whatever lies behind it in memory."""
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, {**STATE, "model": {"w": torch.zeros(77)}})
    size = pickle.dumps(77, 2)[2:-1]
    rewritten(path, lambda data: data.replace(size, pickle.dumps(10**6, 2)[2:-1]))
    with pytest.raises(UserError, match="damaged"):
        read_checkpoint(path, CPU)


@pytest.mark.parametrize("weights", [torch.zeros(10**6), torch.rand(10**4)])
def test_packed_checkpoint(tmp_path: Path, weights: torch.Tensor) -> None:
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, {**STATE, "model": {"w": weights}})
    rewritten(path, lambda data: data, zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="its members are packed"):
        read_checkpoint(path, CPU)


@pytest.mark.parametrize("name", sorted(STATE))
def test_checkpoint_that_lacks_a_field(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / "c", {key: value for key, value in STATE.items() if key != name})
    if name == "averaged":  # none is what it mostly is
        read_checkpoint(tmp_path / "c", CPU)
        return
    with pytest.raises(UserError, match=r"not a checkpoint|damaged"):
        read_checkpoint(tmp_path / "c", CPU)


def npy(shape: Any, content: bytes = b"", kind: str = "|u1") -> bytes:
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def test_whole_array() -> None:
    np.testing.assert_array_equal(array_of(npy((2, 2), b"abcd")), [[97, 98], [99, 100]])
    assert array_of(npy((1,), "\U0010ffff".encode("utf-32-be"), ">U1")).tolist() == ["\U0010ffff"]


@pytest.mark.parametrize(
    "content",
    [
        npy((10**13,), b"abcd"),
        npy((2**40, 2**40), b"abcd"),
        npy((2**63, 2**63, 0)),
        npy((-2, -2), b"abcd"),
        npy((1,), b"abcd"),
        npy((1,), b"a" * 8, "|O"),
        npy((1,), b"a" * 8, "|V8"),
        npy((1,), b"a" * 8, "<M8[s]"),
        npy((5,), b"", "<U0"),
        npy((1,), b"\xff\xff\xff\x7f", "<U1"),
        npy((1,), b"\x00\x11\x00\x00", ">U1"),
        b"\x93NUMPY\x03\x00",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"",
    ],
)
def test_array_that_declares_what_it_does_not_hold(content: bytes) -> None:
    with pytest.raises(ValueError):
        array_of(content)


def test_npz_that_unpacks_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    packed = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with packed as file, file.open("images.npy", "w") as stream:
        for _ in range(600):
            stream.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with pytest.raises(UserError, match="bytes unpacked: more than"):
        read_npz(path)
    # The same, where the directory declares little.
    raw = path.read_bytes().replace(struct.pack("<I", 600 * 2**20), struct.pack("<I", 1000))
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"a\.npz is damaged"):
        read_npz(path)


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_tar_attributes_without_end_are_passed_over(tmp_path: Path, kind: bytes) -> None:
    """`tarfile` would make millions of them a dictionary."""
    attributes = b"6 a=b\n" * 10**6
    attributes += bytes(-len(attributes) % 512)
    content = header("x", len(attributes), kind) + attributes + header("one/a", 5) + b"first"
    path = tmp_path / "a.tgz"
    path.write_bytes(gzip.compress(content + bytes(512 * 4 - 5)))
    (found,) = read_members(path, ["a"])
    assert found.files == {"a": b"first"}


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_are_read_all_the_same(tmp_path: Path, form: int) -> None:
    folder = "x" * (60 if form == tarfile.USTAR_FORMAT else 150) + "/" + "y" * 60
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=form) as archive:
        member = tarfile.TarInfo(f"{folder}/a")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"first"))
    (found,) = read_members(path, ["a"])
    assert (found.folder, found.files) == (folder, {"a": b"first"})


@pytest.mark.parametrize("name", ["../a", "/tmp/a", "one/../../a"])
def test_long_names_do_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    long = name.encode() + b"\0"
    content = header("././@LongLink", len(long), tarfile.GNUTYPE_LONGNAME) + long.ljust(512, b"\0")
    (tmp_path / "a.tar").write_bytes(content + header("a", 1) + bytes(512 * 4))
    assert read_members(tmp_path / "a.tar", ["a"]) == []


def test_tar_of_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MEMBERS", 100)
    path = tmp_path / "a.tar"
    for count, refused in ((100, False), (101, True)):
        path.write_bytes(header("one/b") * (count - 1) + header("one/a") + bytes(1024))
        if refused:
            with pytest.raises(UserError, match="more than 100 members"):
                read_members(path, ["a"])
        else:
            assert len(read_members(path, ["a"])) == 1


def test_tar_of_a_negative_size(tmp_path: Path) -> None:
    block = bytearray(header("one/a"))
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "a.tar").write_bytes(bytes(block) + bytes(1024))
    with pytest.raises(UserError, match="negative size"):
        read_members(tmp_path / "a.tar", ["a"])


@pytest.mark.parametrize(
    "operations",
    [
        b"}r\xff\xff\xff\x7f.",  # LONG_BINPUT: the unpickler of Python reserves 16 GiB for it
        b"\x96\xff\xff\xff\xff\xff\x00\x00\x00.",  # BYTEARRAY8 of a terabyte
        b"\x8e\xff\xff\xff\xff\xff\x00\x00\x00.",  # BINBYTES8 of a terabyte
        b"\x8b\xff\xff\xff\x7f.",  # LONG4 of 2 GiB
        b"T\xff\xff\xff\x7f.",  # BINSTRING of 2 GiB
    ],
)
def test_pickle_that_asks_for_memory(operations: bytes) -> None:
    with pytest.raises(UserError, match="not a CIFAR batch"):
        read_batch(b"\x80\x02" + operations, "labels", "x")


def test_pickle_of_millions_of_operations() -> None:
    with pytest.raises(UserError, match="more than 1,048,576 operations"):
        read_batch(b"\x80\x02" + b"]" * 2_000_000 + b".", "labels", "x")


@pytest.mark.parametrize("label", [10**500, (((1,),),), -1, 10, True, 1.0, None, b"7"])
def test_labels_that_are_none(tmp_path: Path, label: Any) -> None:
    files = TINY.files("python")
    rows = TINY.rows(TINY.batches()["data_batch_1"][0])
    files["data_batch_1"] = WRITERS.python2_pickle(
        {b"labels": [label, 1], b"data": WRITERS.python2_array(rows)}
    )
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"label 0 to 9 expected|not a CIFAR batch"):
        decode(ENTRY, tmp_path)


def test_mat_of_many_small_variables() -> None:
    small = WRITERS.mat_variable("z", np.zeros((1, 1), np.uint8))
    with pytest.raises(UserError, match="more than its arrays take"):
        read_arrays(WRITERS.mat_file(*[small] * 1000), {"X": (2, 2)}, "x.mat")


def gigapixel_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(2**20))
    parts = chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def gigapixel_gif(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("P", (16, 16)).save(out, "GIF")
    content = bytearray(out.getvalue())
    content[6:10] = struct.pack("<HH", width, height)
    return bytes(content)


def gigapixel_jpeg(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, "JPEG")
    content = bytearray(out.getvalue())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(content)


HUGE = [
    ("a.png", gigapixel_png(40_000, 30_000)),
    ("a.png", gigapixel_png(2**31 - 1, 2**31 - 1)),
    ("a.png", gigapixel_png(10_000, 10_000)),
    ("a.jpg", gigapixel_jpeg(40_000, 30_000)),
    ("a.jpg", gigapixel_jpeg(65_500, 65_500)),
    ("a.ppm", b"P6 40000 30000 255 " + bytes(100)),
    ("a.bmp", b"BM" + bytes(12) + struct.pack("<IiiHHIIiiII", 40, 40000, 30000, 1, 24, *[0] * 6)),
    ("a.gif", gigapixel_gif(40_000, 30_000)),
]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("name", "content"), HUGE)
@pytest.mark.parametrize("size", [None, 8])
def test_a_picture_of_a_billion_pixels(
    tmp_path: Path, name: str, content: bytes, size: int | None
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is not a readable image: .*pixels"):
        read_picture(tmp_path / name, size)


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "a.png"
    os.mkfifo(pipe)
    zeros = tmp_path / "config.json"
    zeros.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="not a plain file"):
        read_picture(pipe, 8)
    with pytest.raises(UserError, match="neither a file nor a folder"):
        read_members(pipe, ["a"])
    for path in (pipe, zeros):
        with pytest.raises(UserError, match="not a plain file"):
            reading.read_json(path)
        with pytest.raises(UserError, match="no weights at"):
            read_weights(path, torch.nn.Identity())
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder(tmp_path).read_run()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 10**5, "nested deeper"),
        ('{"a":' * 10**5, "nested deeper"),
        ("[" + "[]," * 2**18 + "1]", "too large"),
        ("[" + "1," * (2**21 + 1) + "1]", "too large"),
        ('{"a": NaN}', "NaN is not allowed"),
        ("[-Infinity]", "is not allowed"),
        ("1" * 10_000, "not JSON"),
        ("", "not JSON"),
    ],
)
def test_json_deep_and_large(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        reading.read_json(path)
    with pytest.raises(UserError, match=r"a\.json"):
        reading.read_record(path, AttackFile)
    with pytest.raises(UserError, match=r"a\.json"):
        read_rows(path)


def test_huge_json_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="bytes: more than"):
        RunFolder(tmp_path).read_run()


def test_wrong_values_by_the_million_are_one_complaint(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"images": ["x"] * 100_000}))
    with pytest.raises(UserError, match=r"100,0\d\d values are wrong"):
        reading.read_record(path, AttackFile)


def safetensors(head: Any, content: bytes = b"", size: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + content


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        safetensors(b"{}", size=2**63),
        safetensors(b"{}", size=10**8),
        safetensors(b"[" * 10**5),
        safetensors({"w": {**ONE, "shape": [2**62]}}, bytes(4)),
        safetensors({"w": {**ONE, "data_offsets": [0, 2**40]}}, bytes(4)),
        safetensors({"w": {**ONE, "dtype": "X9"}}, bytes(4)),
        safetensors({"w": ONE, "v": ONE}, bytes(4)),
        b"",
        b"\x00" * 8,
    ],
)
def test_absurd_safetensors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        read_weights(path, torch.nn.Identity())
    with pytest.raises(UserError, match=r"model\.safetensors"):
        read_about(path)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {**ABOUT, "classes": []},
        {**ABOUT, "classes": 10},
        {**ABOUT, "channels": 10**12},
        {**ABOUT, "channels": "1"[:0]},
        {**ABOUT, "image_size": [8]},
        {**ABOUT, "image_size": [10**9, 8]},
        {key: value for key, value in ABOUT.items() if key != "channels"},
    ],
)
def test_weights_that_do_not_say_of_what(tmp_path: Path, about: dict[str, Any]) -> None:
    path = tmp_path / "model.safetensors"
    write_weights(path, build_model("small-cnn", 10, 1), about)
    with pytest.raises(UserError, match="not a weights file of this package"):
        read_about(path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite(tmp_path: Path, value: float) -> None:
    model = build_model("small-cnn", 10, 1)
    with torch.no_grad():
        model.head.bias[3] = value  # type: ignore[union-attr, operator]
    write_weights(tmp_path / "w", model, ABOUT)
    with pytest.raises(UserError, match=r"head\.bias contains NaN or infinity"):
        read_weights(tmp_path / "w", model)


def test_weights_of_another_type(tmp_path: Path) -> None:
    model = build_model("small-cnn", 10, 1)
    write_weights(tmp_path / "half", model.half(), ABOUT)
    read_weights(tmp_path / "half", model.float())  # a float is a float
    model.head.bias = torch.nn.Parameter(torch.zeros(10, dtype=torch.int32), requires_grad=False)
    write_weights(tmp_path / "whole", model, ABOUT)
    with pytest.raises(UserError, match=r"head\.bias is torch\.int32, not torch\.float32"):
        read_weights(tmp_path / "whole", build_model("small-cnn", 10, 1))


def make_run(path: Path, **fields: Any) -> RunFolder:
    folder = RunFolder(path)
    folder.prepare(RUN.with_fields(**fields), {})
    write_weights(folder.weights, build_model("small-cnn", 10, 1), ABOUT)
    return folder


@pytest.mark.parametrize("model", ["wrn-994-100", "wrn-28-100", "resnet-152"])
def test_a_configuration_that_asks_for_a_giant(tmp_path: Path, model: str) -> None:
    """Its shapes are compared before any memory is taken for them."""
    with pytest.raises(UserError, match="does not fit the model"):
        trained_model(make_run(tmp_path, model=model), CPU)


@pytest.mark.parametrize("model", ["wrn-100000000000-1", "wrn-10000-1", "wrn-28-1000"])
def test_a_configuration_that_asks_for_more_than_a_giant(tmp_path: Path, model: str) -> None:
    with pytest.raises(UserError, match=r"at most|unknown model"):
        trained_model(make_run(tmp_path, model=model), CPU)


@pytest.mark.parametrize("place", ["run/model.py", "model.py"])
def test_code_that_comes_with_a_run_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'made')!r}).touch()\ndef build(): pass\n"
    (tmp_path / place).write_text(code)
    inside = str(tmp_path / place) if "/" in place else place
    folder = make_run(tmp_path / "run", model=f"{inside}:build")
    with pytest.raises(UserError, match="code that may have come with it"):
        trained_model(folder, CPU)
    assert not (tmp_path / "made").exists()


def test_looking_for_code_does_not_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hostile_package").mkdir()
    (tmp_path / "hostile_package" / "__init__.py").write_text("raise SystemExit('run')")
    (tmp_path / "hostile_package" / "attack.py").write_text("raise SystemExit('run')")
    assert len(source_digest("hostile_package.attack:attack")) == 16
