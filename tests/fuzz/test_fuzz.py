"""The fuzz campaign: every damaged file of every format is right data or refused in one line.

`BILATERAL_FUZZ_INPUTS` is how many inputs a format gets (`make fuzz`: 5,000).
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from campaign import SECONDS, forked, line, outcome
from formats import FORMATS
from fuzz_format import Format
from mutation import damage, strange_json

from bilateral.errors import UserError

INPUTS = int(os.environ.get("BILATERAL_FUZZ_INPUTS", "300"))
CAMPAIGN = Path(__file__).with_name("campaign.py")


@pytest.fixture(scope="session")
def found() -> dict[str, dict[str, Any]]:
    """What a campaign over all formats found."""
    words = [sys.executable, str(CAMPAIGN), "--inputs", str(INPUTS), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return {result["name"]: result for result in json.loads(done.stdout)}


@pytest.mark.timeout(300 + INPUTS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_damaged_file_is_read_right_or_refused(
    name: str, found: dict[str, Any], record_property: Any
) -> None:
    result = found[name]
    record_property("fuzz", line(result))
    assert result["failures"] == {}
    assert result["inputs"] == INPUTS == result["right"] + result["refused"]
    assert result["refused"] > INPUTS / 5, "damage that nobody notices is no test"


def offender(read: Any) -> Format:
    return Format("offender", lambda folder: b"a whole file", read)


def crash(content: bytes, folder: Path) -> None:
    if content != b"a whole file":
        os.kill(os.getpid(), signal.SIGKILL)


def hang(content: bytes, folder: Path) -> None:
    while content != b"a whole file":
        try:
            sum(range(1000))
        except Exception:  # as a reader that catches everything
            continue


def hoard(content: bytes, folder: Path) -> None:
    try:
        bytearray(3 * 2**30)
    except Exception:
        raise UserError("damaged") from None


def execute(content: bytes, folder: Path) -> None:
    (folder / "made-by-a-payload").touch()


def long_winded(content: bytes, folder: Path) -> None:
    raise UserError("x" * 10_000)


def wrong(content: bytes, folder: Path) -> None:
    assert content == b"a whole file", "other data"


def quick(content: bytes, folder: Path) -> None:
    if content != b"a whole file":
        raise UserError("damaged")


@pytest.mark.parametrize(
    ("read", "failure"),
    [
        (crash, "the process ended with status"),
        (hoard, "bytes of memory"),
        (execute, "a payload was executed"),
        (long_winded, "a message of 10000 letters"),
        (wrong, "AssertionError: other data"),
    ],
)
def test_the_campaign_finds_known_offenders(read: Any, failure: str) -> None:
    found = forked(offender(read), 20, seed=0)
    assert any(failure in each for each in found["failures"]), found
    for kept in filter(None, found["failures"].values()):
        Path(kept).unlink()


def test_the_campaign_finds_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaign.SECONDS", 1)
    found = forked(offender(hang), 1, seed=0)
    (failure,) = found["failures"]
    assert "no answer in 1 seconds" in failure and SECONDS == 10
    Path(found["failures"][failure]).unlink()


def test_the_campaign_leaves_an_innocent_alone() -> None:
    found = forked(offender(quick), 50, seed=0)
    assert found["failures"] == {} and found["refused"] + found["right"] == 50
    assert found["refused"] > 40


def test_damage_follows_from_the_seed_and_changes_the_file() -> None:
    whole = bytes(range(256)) * 8
    one, again = ([damage(Random(seed), whole) for seed in range(200)] for _ in range(2))
    assert one == again
    assert len(set(one)) > 190 and one.count(whole) < 10


def test_strange_json_is_json_mostly_and_other() -> None:
    whole = json.dumps({"a": [1, 2], "b": {"c": "d"}}).encode()
    texts = [strange_json(Random(seed), whole) for seed in range(300)]
    parsed = 0
    for text in texts:
        try:
            parsed += json.loads(text) != json.loads(whole)
        except (ValueError, RecursionError):
            continue
    assert parsed > 200


def test_a_format_without_a_reader_for_its_own_file_fails(tmp_path: Path) -> None:
    def refuse(content: bytes, folder: Path) -> None:
        raise UserError("never")

    assert outcome(offender(refuse), b"", tmp_path) == "refused"
    assert any("the whole file" in each for each in forked(offender(refuse), 1, 0)["failures"])
