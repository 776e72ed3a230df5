"""Several commands at once: how many, and what happens when one fails or a signal comes."""

import io
import os
import signal
import time

import pytest

from bilateral import jobs
from bilateral.errors import Interrupted, TrainingError, UserError
from bilateral.jobs import machine_words, run_together
from bilateral.machine import Machine


def test_machine_settings_travel_as_options():
    machine = Machine(compile="off", accumulate=2, tensorboard=True)
    words = ["--machine.compile", "off", "--machine.accumulate", "2", "--machine.tensorboard"]
    assert machine_words(machine) == words and machine_words(Machine()) == []


def sleeping(monkeypatch, seconds):
    """In place of a command a process that sleeps; when each began and ended."""
    times = {}

    class Child:
        returncode = None

        def __init__(self, name):
            self.began, self.asked = time.monotonic(), False
            times[name] = self

        def poll(self):
            if self.asked or time.monotonic() > self.began + seconds:
                self.returncode = self.returncode or 0
                return self.returncode
            return None

        def terminate(self):
            self.asked = True

        def wait(self):
            return self.poll()

    monkeypatch.setattr(jobs, "_started", lambda words: (Child(words[0]), io.BytesIO()))
    return times


def test_no_more_than_so_many_at_a_time(monkeypatch):
    times = sleeping(monkeypatch, 0.4)
    done = []
    run_together({name: [name] for name in "abcd"}, 2, done.append)
    assert sorted(done) == list("abcd")
    assert abs(times["a"].began - times["b"].began) < 0.3
    assert times["c"].began > times["a"].began + 0.35


def test_none_is_started_once_the_answer_is_no(monkeypatch):
    times = sleeping(monkeypatch, 0.3)
    run_together({name: [name] for name in "abcd"}, 2, may_start=lambda: len(times) < 2)
    assert sorted(times) == ["a", "b"]


def test_a_refusal_is_told_in_its_own_words():
    with pytest.raises(UserError, match=r"^bad: unknown command 'trian'; nearest: train"):
        run_together({"bad": ["trian"]}, 2)


def test_a_failure_stops_the_others(monkeypatch):
    times = sleeping(monkeypatch, 60)
    started = jobs._started

    def one_fails(words):
        child, said = started(words)
        if words[0] == "bad":
            child.returncode, child.asked = 3, True
        return child, said

    monkeypatch.setattr(jobs, "_started", one_fails)
    before = time.monotonic()
    with pytest.raises(TrainingError, match="bad ended with status 3"):
        run_together({"good": ["good"], "bad": ["bad"]}, 2)
    assert times["good"].asked and time.monotonic() - before < 10


def test_a_signal_is_passed_on(monkeypatch):
    times = sleeping(monkeypatch, 60)
    ask = iter([False, False, True])
    sleep = time.sleep

    def interrupted(seconds):
        sleep(seconds)
        if next(ask, False):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(jobs.time, "sleep", interrupted)
    with pytest.raises(Interrupted) as stopped:
        run_together({"a": ["a"], "b": ["b"], "c": ["c"]}, 2)
    assert stopped.value.number == signal.SIGTERM
    assert times["a"].asked and times["b"].asked and "c" not in times
