"""Commands killed and stopped at random moments end as if they had not been."""

import os
import time
from pathlib import Path

import pytest
from fault_injection import Campaign, Fresh, Scenario, Server, left_overs
from fault_scenarios import results

FAULTS = {
    "train": 50,
    "evaluate": 32,
    "reproduce": 20,
    "download": 36,
    "fetch": 24,
    "report": 36,
}
"""How many are injected into each command; a soak goes on until its time is over."""
A_RUN = 5
SOAK_SECONDS = float(os.environ.get("BILATERAL_SOAK_SECONDS", "0"))
SEED = int(os.environ.get("BILATERAL_SOAK_SEED", "0"))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", FAULTS)
def test_a_disturbed_command_ends_like_an_undisturbed_one(
    name: str, server: Server, known: dict[str, Scenario], tmp_path: Path, record_property
) -> None:
    """The same results, no temporary file, no half-written file in between."""
    campaign = Campaign(known[name], server, tmp_path, SEED)
    until = time.monotonic() + SOAK_SECONDS / len(FAULTS)
    while sum(campaign.tally.faults.values()) < FAULTS[name] or time.monotonic() < until:
        campaign.run(A_RUN)
    tally = campaign.tally
    kinds = dict(tally.faults)
    record_property(
        "faults", {"scenario": name, "kinds": kinds, "runs": tally.runs, "right": tally.right}
    )
    assert tally.right == tally.runs > 0


@pytest.mark.parametrize("name", ["train", "evaluate", "report"])
def test_a_process_of_the_shell_leaves_the_same(
    name: str, server: Server, known: dict[str, Scenario], tmp_path: Path
) -> None:
    """What the server's children are compared with is what users get."""
    campaign = Campaign(known[name], server, tmp_path, SEED)
    folder = campaign._folder()
    assert Fresh(known[name].words, folder, tmp_path / "said.txt").wait(100) == 0
    assert results(folder) == campaign.expected and left_overs(folder) == []
