"""What is seen of an evaluation in a pipe: a line when an attack ends, and now and then before."""

import pytest

from bilateral.evaluation import progress as module
from bilateral.evaluation.progress import EvaluationProgress


@pytest.mark.parametrize("quiet", [False, True])
def test_a_long_attack_is_not_silent_in_a_pipe(quiet, monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with EvaluationProgress(quiet) as progress:
        for done in range(10, 101, 10):
            now += 12.0
            progress.show("apgd-ce", done, 100, 0.5)
    lines = capsys.readouterr().err.splitlines()
    of = ["30 of 100", "60 of 100", "90 of 100", "100"]
    expected = [f"apgd-ce: {part} images attacked, robust so far 50.0 %" for part in of]
    assert lines == ([] if quiet else expected)
