import gzip
import io
import tarfile
from pathlib import Path

import pytest

from bilateral.data import archives
from bilateral.data.archives import read_members
from bilateral.errors import UserError


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = len(content)
    info.linkname = "/etc/hostname" if kind != tarfile.REGTYPE else ""
    return info, content


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_reads_wanted_files_of_each_folder(tmp_path: Path, mode: str) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        member("./one/a", b"first"),
        member("one/readme", b"not wanted"),
        member("two/a", b"second"),
        mode=mode,
    )
    found = {folder.folder: folder.files for folder in read_members(path, ["a", "b"])}
    assert found == {"one": {"a": b"first"}, "two": {"a": b"second"}}


def test_nothing_is_written_and_odd_members_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "x" / "y"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    path = write_tar(
        tmp_path / "a.tgz",
        member("../../a", b"escapes"),
        member("/tmp/bilateral-escape/a", b"absolute"),
        member("link/a", kind=tarfile.SYMTYPE),
        member("hard/a", kind=tarfile.LNKTYPE),
        member("device/a", kind=tarfile.CHRTYPE),
    )
    assert read_members(path, ["a"]) == []
    assert sorted(tmp_path.rglob("*")) == [path, tmp_path / "x", inside]
    assert not Path("/tmp/bilateral-escape").exists()


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.95])
def test_truncated_archive(tmp_path: Path, kept: float) -> None:
    content = bytes(range(256)) * 400
    path = write_tar(tmp_path / "a.tgz", member("one/a", content), member("one/b", content))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(UserError, match=r"a\.tgz is not a complete"):
        read_members(path, ["a", "b"])


@pytest.mark.parametrize("content", [b"", b"plain text, no archive", b"\x1f\x8b broken"])
def test_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.tgz is not a complete"):
        read_members(path, ["a"])


def test_altered_gzip_is_caught_by_its_checksum(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tgz", member("one/a", b"x" * 5000))
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"a\.tgz is not a complete"):
        read_members(path, ["a"])


@pytest.mark.parametrize("name", ["one/a", "one/other"])
def test_bomb_is_refused_wherever_it_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(archives, "LIMIT", 2**20)
    path = write_tar(tmp_path / "a.tgz", member(name, bytes(2**21)))
    assert path.stat().st_size < 2**14
    with pytest.raises(UserError, match="unpacks to more than 1 MiB"):
        read_members(path, ["a"])


def test_member_that_claims_more_than_there_is(tmp_path: Path) -> None:
    info, _ = member("one/a")
    info.size = 2**28
    path = tmp_path / "a.tgz"
    path.write_bytes(gzip.compress(info.tobuf() + b"short"))
    with pytest.raises(UserError, match=r"a\.tgz is not a complete"):
        read_members(path, ["a"])


def test_folder_and_its_folders(tmp_path: Path) -> None:
    (tmp_path / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "a").write_bytes(b"outer")
    (tmp_path / "inner" / "a").write_bytes(b"inner")
    (tmp_path / "inner" / "b").mkdir()
    (tmp_path / "inner" / "deep" / "a").write_bytes(b"too deep")
    found = {folder.folder: folder.files for folder in read_members(tmp_path, ["a", "b"])}
    assert found == {".": {"a": b"outer"}, "inner": {"a": b"inner"}}


def test_folder_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LIMIT", 10)
    (tmp_path / "a").write_bytes(b"eleven byte")
    with pytest.raises(UserError, match="unpacks to more"):
        read_members(tmp_path, ["a"])


def test_messages_name_the_file(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tgz", member("one/a", b"x"))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a").write_bytes(b"x")
    assert read_members(path, ["a"])[0].where("a") == f"{path}: one/a"
    assert read_members(tmp_path, ["a"])[0].where("a") == f"{tmp_path}/one/a"
