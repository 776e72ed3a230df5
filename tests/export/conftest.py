"""What the tests of the export share: a trained run, and its export in all formats."""

from pathlib import Path

import pytest
from export_runs import export, make_run

from bilateral.cli import main
from bilateral.runs import RunFolder


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> RunFolder:
    """A digits run of one epoch, evaluated on twenty images."""
    out = tmp_path_factory.mktemp("trained")
    words = ["--epochs", "1", "--check-epochs", "0", "--quiet", "--out", str(out)]
    assert main(["train", "digits-r-mc-la", *words]) == 0
    folder = RunFolder(out / "digits-r-mc-la" / "seed0")
    words = ["--attacks", "fgsm,pgd5", "--images", "20", "--quiet"]
    assert main(["evaluate", str(folder.path), *words]) == 0
    return folder


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory) -> Path:
    """That run in all formats."""
    out = tmp_path_factory.mktemp("exported") / "export"
    for name in ("safetensors", "torch", "onnx"):
        assert export(trained.path, "--format", name, "--out", out, "--quiet") == 0
    return out


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """An untrained small network as a finished run."""
    return make_run(tmp_path / "run")
