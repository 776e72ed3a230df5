"""`bilateral report` through the real entry point: exit code, file, message; and the wheel."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from run_folders import make_run, transfer

from entry_point import bilateral

ROOT = Path(__file__).parents[2]
PACKAGED = ("page.html.j2", "page.js", "style.css")


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "digits-r-mc-la" / "seed0", epochs=3)


def test_one_run_goes_into_its_folder(run):
    done = bilateral("report", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{run}/report.html  1 run, 0.")
    assert "digits-r-mc-la/seed0" in (run / "report.html").read_text()


def test_several_runs_go_into_this_folder(run, tmp_path):
    other = make_run(tmp_path / "other" / "seed1", epochs=3)
    matrix = transfer(tmp_path / "transfer.json", ["a", "b"])
    done = bilateral("report", run, other, "--transfer", matrix, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("report.html  2 runs")
    page = (tmp_path / "report.html").read_text()
    assert "other/seed1" in page and "Transfer by pgd20" in page
    assert not (run / "report.html").exists()


def test_json_and_quiet(run, tmp_path):
    (run / "diagnostics.json").write_text("{")
    out = tmp_path / "deep" / "page.html"
    done = bilateral("report", run, "--out", out, "--json")
    value = json.loads(done.stdout)
    assert value["report"] == str(out) and value["bytes"] == out.stat().st_size
    (missing,) = value["runs"][0]["missing"]
    assert missing["file"] == "diagnostics.json"
    assert missing["command"] == f"bilateral diagnose {run}"
    assert "diagnostics.json: damaged" in bilateral("report", run).stderr
    assert bilateral("report", run, "--quiet").stderr == ""


def test_bad_input_changes_nothing(run, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for words, message in (
        (["report"], "one or more run folders"),
        (["report", tmp_path / "none"], "no run folder at"),
        (["report", run.parent], f"did you mean {run}?"),
        (["report", tmp_path], "is not a run folder"),
        (["report", run, "--out", tmp_path], "is a folder"),
        (["report", run, "--transfer", tmp_path / "none.json"], "no none.json there"),
        (["report", run, "--transfer", run / "config.json"], "holds no transfer matrix"),
        (["report", run, "--oute", "x"], "unknown option --oute"),
    ):
        done = bilateral(*words, cwd=tmp_path)
        assert done.returncode == 2, (words, done.stderr)
        assert message in done.stderr and done.stderr.count("\n") == 1
        assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_what_the_page_needs_is_in_the_wheel(tmp_path):
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", tmp_path, ROOT]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no network: pip cannot fetch hatchling, which builds the wheel")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    for file in PACKAGED:
        assert f"bilateral/report/{file}" in inside
