"""A signal ends a command by its own exit code, wherever in Python's insides it comes."""

import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress

import pytest

from bilateral import cli
from bilateral.signals import stoppable

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def ask(number):
    os.kill(os.getpid(), number)
    time.sleep(0.01)  # the handler runs before this ends


def while_importing(number):
    """An extension that was half loaded is refused the second time: what numpy does."""
    try:
        ask(number)
    except BaseException:
        raise ImportError("cannot load module more than once per process") from None


def while_a_class_is_made(number):
    class Field:
        def __set_name__(self, owner, name):
            ask(number)

    class Owner:
        field = Field()


def in_a_callback(number):
    """Python tells of an exception there and goes on."""

    class Thing:
        pass

    thing = Thing()
    reference = weakref.ref(thing, lambda _: ask(number))
    del thing
    assert reference() is None
    time.sleep(5)
    raise AssertionError("nothing stopped it")


def plainly(number):
    ask(number)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("moment", [plainly, while_importing, while_a_class_is_made, in_a_callback])
def test_a_signal_ends_the_command(moment, number, code, monkeypatch, capfd):
    monkeypatch.setattr(cli, "_run", lambda *_: moment(number))
    before = signal.getsignal(signal.SIGALRM), sys.unraisablehook
    began = time.monotonic()
    assert cli.main(["list"]) == code
    assert time.monotonic() - began < 3
    said = capfd.readouterr().err
    assert said.startswith("bilateral: stopped") and said.count("\n") == 1
    assert "goes on" not in said, "nothing was saved"
    assert (signal.getsignal(signal.SIGALRM), sys.unraisablehook) == before


def test_what_is_raised_again_is_not_lost_again(monkeypatch, capfd):
    """On a busy machine the alarm may ring before the one who set it goes on."""
    plain = signal.setitimer

    def slow(*timer):
        plain(*timer)
        time.sleep(0.01)

    monkeypatch.setattr(signal, "setitimer", slow)
    test_a_signal_ends_the_command(in_a_callback, signal.SIGTERM, 143, monkeypatch, capfd)


def test_without_a_signal_errors_are_what_they_are():
    with pytest.raises(ImportError, match="no such thing"), stoppable():
        raise ImportError("no such thing")


def test_other_exceptions_that_are_lost_are_told_of(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Thing:
        def __del__(self):
            raise ValueError("lost")

    with stoppable():
        Thing()
    assert [str(one.exc_value) for one in told] == ["lost"]


def test_a_second_ctrl_c_after_the_command_says_nothing():
    """While Python's own clearing up runs, torch's among it."""
    code = (
        "import atexit, os, signal, sys\n"
        "from bilateral.cli import program\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also in the background
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv[1:] = ['--version']\n"
        "sys.exit(program())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert done.stdout.startswith("bilateral ")


def test_a_command_stops_when_the_process_it_works_for_is_killed(tmp_path):
    """One that was started by hand does not."""
    code = (
        "import os, sys, time\n"
        "from bilateral import cli\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"  # in one piece: two processes write here
        "cli._run = lambda *_: time.sleep(30)\n"
        "open(sys.argv[1], 'w').write(str(cli.program()))\n"
    )
    parent = (
        "import os, subprocess, sys, time\n"
        "from bilateral.signals import PARENT\n"
        "for name, own in (('worker', {PARENT: str(os.getpid())}), ('free', {})):\n"
        f"    words = [sys.executable, '-c', {code!r}, name]\n"
        "    subprocess.Popen(words, env={**os.environ, **own})\n"
        "time.sleep(30)\n"
    )
    words = [sys.executable, "-c", parent]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=tmp_path, **quiet) as killed:
        children = [int(killed.stdout.readline()) for _ in range(2)]
        time.sleep(0.5)
        killed.kill()
    worker, free = tmp_path / "worker", tmp_path / "free"
    try:
        until = time.monotonic() + 10
        while not (worker.exists() and worker.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        assert worker.read_text() == "143" and not free.read_text()
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


@pytest.mark.kills
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_while_torch_is_imported(number, code, tmp_path):
    """At moments over the whole start of a real command."""
    for moment in (0.15, 0.4, 0.8, 1.2):
        words = [sys.executable, "-m", "bilateral", "reproduce", "cifar10", "--quick"]
        with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
            time.sleep(moment)
            child.send_signal(number)
            _, said = child.communicate(timeout=60)
        if child.returncode in (-number, 0):  # before our first line was reached, or done
            continue
        assert child.returncode == code and "Traceback" not in said, said
