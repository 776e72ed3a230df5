"""Work that is asked to stop: at the next step, or when its patience is over."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bilateral.errors import Interrupted
from bilateral.evaluation import campaign
from bilateral.evaluation.campaign import evaluate_target
from bilateral.evaluation.target import find_target
from bilateral.runs import RunFolder
from bilateral.runtime import StopRequest

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Handlers and timer are afterwards what they were; pytest's own timer among them."""
    before = [signal.getsignal(number) for number in ASKING]
    timer = signal.getitimer(signal.ITIMER_REAL)[0]
    yield
    assert [signal.getsignal(number) for number in ASKING] == before
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    assert timer - 30 < left <= timer if timer else not left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_step_that_takes_too_long_is_ended(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    stop, started = StopRequest(patience=0.2), time.monotonic()
    with pytest.raises(Interrupted) as raised, stop.listening():
        os.kill(os.getpid(), number)
        assert stop.number == number, "asked first"
        time.sleep(30)
    assert raised.value.number == number and time.monotonic() - started < 10
    assert "after this batch, in 0.2 seconds at the latest" in capfd.readouterr().err


def test_what_the_step_makes_of_it_does_not_matter() -> None:
    """C++ that calls Python turns whatever is raised into an error of its own."""
    with pytest.raises(Interrupted), StopRequest(patience=0.1).listening():
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            time.sleep(30)
        except Interrupted as error:
            raise RuntimeError("a hook failed") from error


def test_a_step_in_time_is_left_alone() -> None:
    stop = StopRequest(patience=0.3)
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)
    assert stop.number == signal.SIGTERM


def test_without_patience_a_step_may_take_its_time() -> None:
    """A training step is followed by a checkpoint, so it is never ended."""
    stop = StopRequest()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
    assert stop.number == signal.SIGTERM


def test_an_errors_own_kind_stays(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), StopRequest(patience=5).listening():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError


def test_an_evaluation_stops_within_its_patience_and_goes_on(
    digits_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attack on a batch that would take a minute; the batches before it are kept."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "def attack(model, images, labels, epsilon):\n"
        f"    if pathlib.Path({str(tmp_path / 'slow')!r}).exists():\n"
        "        time.sleep(60)\n"
        "    return images\n"
    )
    cpu = torch.device("cpu")
    target = find_target(str(digits_run.path), None, None, str(tmp_path / "out"), cpu)
    monkeypatch.setattr(campaign, "PATIENCE_SECONDS", 0.3)
    done: list[int] = []

    def shown(attack: str, count: int, of: int, accuracy: float) -> None:
        done.append(count)
        if len(done) == 2:  # not when it goes on
            (tmp_path / "slow").touch()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()

    def work() -> None:
        name = f"{tmp_path / 'slow.py'}:attack"
        evaluate_target(target, [name], 40 / 255, 40, cpu, 10, shown)

    started = time.monotonic()
    with pytest.raises(Interrupted):
        work()
    assert time.monotonic() - started < 20
    (tmp_path / "slow").unlink()
    assert done == [10, 20]
    work()
    assert done == [10, 20, 10, 20], "what is left"
