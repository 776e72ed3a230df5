"""The server that all campaigns share, and the line that says how they ended."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_data import NAME, add_data_set, slow_host, write_archive
from fault_injection import PATIENCE_SECONDS, Scenario, Server
from fault_scenarios import EVALUATE, TRAIN, scenarios

from bilateral.data.datasets import DATASETS


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def archive(place: Path) -> Path:
    return write_archive(place / "noise.tar.gz")


@pytest.fixture(scope="session")
def server(archive: Path) -> Iterator[Server]:
    with slow_host(archive) as url:
        os.environ["BILATERAL_DATA"] = "cache"  # below the folder of each run
        add_data_set(archive, url)
        server = Server(str(archive), url)
        yield server
        server.close()
        del os.environ["BILATERAL_DATA"], DATASETS[NAME]


@pytest.fixture(scope="session")
def known(server: Server, place: Path, archive: Path) -> dict[str, Scenario]:
    """The scenarios, with a run to begin with."""
    folders = {}
    for name, commands in (
        ("trained", [[*TRAIN, "--quiet"]]),
        ("evaluated", [[*TRAIN, "--quiet"], EVALUATE]),
    ):
        folders[name] = place / name
        folders[name].mkdir()
        for words in commands:
            process = server.start(words, folders[name], place / "said.txt")
            assert process.wait(PATIENCE_SECONDS) == 0, (place / "said.txt").read_text()
    return scenarios(folders["trained"], folders["evaluated"], archive)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many faults were injected and how many runs ended right."""
    faults: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    runs = right = 0
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "faults" and getattr(report, "when", "") == "call":
                    faults[value["scenario"]] += sum(value["kinds"].values())
                    kinds.update(value["kinds"])
                    runs, right = runs + value["runs"], right + value["right"]
    if not runs:
        return
    write = terminalreporter.write_line
    write("")
    write(f"faults injected: {sum(faults.values())}; runs that ended right: {right} of {runs}")
    for title, counts in (("in", faults), ("by", kinds)):
        write(f"  {title} " + ", ".join(f"{name} {count}" for name, count in counts.items()))
