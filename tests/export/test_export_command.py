"""`bilateral export` through the entry point: files, JSON, and one line for bad input."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from export_runs import export, make_run

from bilateral.cli import main
from bilateral.weights import read_about


def refused(capsys, *words) -> str:
    """The one line with which an export is refused."""
    assert export(*words) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and told.err.startswith("bilateral: ")
    return told.err


def listing(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_json_names_the_files_that_are_there(trained, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert export(trained.path, "--out", out, "--json") == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert told.err == ""
    assert [file["name"] for file in document["files"]] == ["model.safetensors", "model.py"]
    found = listing(out)
    assert set(found) == {"model.safetensors", "model.py", "MODEL_CARD.md", "export.json"}
    for file in document["files"]:
        assert found[file["name"]] == file["sha256"]
        assert (out / file["name"]).stat().st_size == file["bytes"]
    assert document["largest_difference"] == 0.0
    assert (document["images"], document["images_from"]) == (32, "test images of digits")
    entry = json.loads(trained.evaluation.read_text())["entries"][0]
    assert document["weights_digest"] == entry["weights_digest"]
    about = read_about(out / "model.safetensors")
    assert about["classes"] == list("0123456789") and about["image_size"] == [8, 8]
    assert (about["channels"], about["model"]) == (1, "small-cnn")
    assert about["normalisation"] == {"mean": [0.5], "std": [0.5]}


def test_the_default_place_is_in_the_run_folder(run, capsys):
    before = listing(run.path)
    assert export(run.path) == 0
    told = capsys.readouterr().out
    after = listing(run.path)
    assert {name: after[name] for name in before} == before
    new = sorted(set(after) - set(before))
    assert new == [f"export/{name}" for name in ("MODEL_CARD.md", "export.json")] + [
        "export/model.py",
        "export/model.safetensors",
    ]
    for name in ("model.py", "model.safetensors"):
        assert after[f"export/{name}"] in told


def test_formats_share_a_folder_and_its_card(run, capsys):
    for name in ("torch", "safetensors"):
        assert export(run.path, "--format", name) == 0
    found = listing(run.path / "export")
    card = (run.path / "export" / "MODEL_CARD.md").read_text()
    for name in ("model.pt2", "model.safetensors", "model.py"):
        assert f"| {name} |" in card and found[name] in card
    # A file that was changed since is no longer vouched for.
    (run.path / "export" / "model.pt2").write_bytes(b"changed")
    assert export(run.path) == 0
    card = (run.path / "export" / "MODEL_CARD.md").read_text()
    assert "model.pt2" not in card and "model.safetensors" in card


def test_help_needs_no_torch():
    code = (
        "import sys\nfrom bilateral.cli import main\n"
        "try:\n    main(['export', '--help'])\nexcept SystemExit:\n    pass\n"
        "import bilateral.export.model_card\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--format" in done.stdout


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("onx", "unknown format 'onx'; nearest: onnx"),
        ("safetensor", "unknown format 'safetensor'; nearest: safetensors, torch"),
        ("gguf", "unknown format 'gguf'; available: safetensors, torch, onnx"),
    ],
)
def test_an_unknown_format_is_answered_with_the_nearest(run, capsys, name, answer):
    assert refused(capsys, run.path, "--format", name) == f"bilateral: {answer}\n"
    assert not (run.path / "export").exists()


def test_what_is_no_finished_run_is_refused(tmp_path, run, capsys):
    assert "no run folder at" in refused(capsys, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "it has no config.json" in refused(capsys, tmp_path / "empty")
    make_run(tmp_path / "runs" / "seed0")
    assert f"did you mean {tmp_path}/runs/seed0?" in refused(capsys, tmp_path / "runs")
    run.weights.unlink()
    assert "train it to the end first" in refused(capsys, run.path)
    run.weights.write_bytes(b"not safetensors")
    refused(capsys, run.path)
    assert not (run.path / "export").exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path, run, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(capsys, run.path, "--out", tmp_path / "file")
    assert "is not a folder" in refused(capsys, run.path, "--out", tmp_path / "file" / "below")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "permission denied" in refused(capsys, run.path, "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_only_an_exports_own_files_are_replaced(tmp_path, run, capsys):
    assert "is a run folder" in refused(capsys, run.path, "--out", run.path)
    out = tmp_path / "code"
    out.mkdir()
    (out / "model.py").write_text("mine = 1\n")
    before = listing(tmp_path)
    assert "model.py exists already" in refused(capsys, run.path, "--out", out)
    assert listing(tmp_path) == before
    assert export(run.path, "--out", out, "--format", "torch", "--quiet") == 0
    assert (out / "model.py").read_text() == "mine = 1\n"
    capsys.readouterr()
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "MODEL_CARD.md").write_text("mine")
    assert "MODEL_CARD.md exists already" in refused(capsys, run.path, "--out", tmp_path / "cards")


def test_the_export_of_other_weights_is_not_mixed_with(tmp_path, run, capsys):
    out = tmp_path / "export"
    assert export(run.path, "--out", out, "--quiet") == 0
    capsys.readouterr()
    before = listing(out)
    other = make_run(tmp_path / "other", classes=("yes", "no"))
    assert "holds the export of other weights" in refused(capsys, other.path, "--out", out)
    assert listing(out) == before
    (out / "export.json").write_text('{"schema": 1}')
    assert "export.json is damaged" in refused(capsys, run.path, "--out", out)


def test_an_export_that_was_cut_off_is_done_again(run, capsys):
    """Killed between the list of files and the last of them."""
    assert export(run.path, "--quiet") == 0
    out = run.path / "export"
    whole = listing(out)
    (out / "model.py").unlink()
    (out / "MODEL_CARD.md").unlink()
    assert export(run.path, "--quiet") == 0
    assert listing(out) == whole
    assert not list(out.glob("*.tmp")) and not list(out.glob(".*"))


def test_a_run_folder_may_be_moved(trained, tmp_path, capsys):
    shutil.copytree(trained.path, tmp_path / "moved")
    assert main(["export", str(tmp_path / "moved"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["largest_difference"] == 0.0
