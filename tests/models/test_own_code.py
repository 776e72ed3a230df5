"""Figures are of one code: whatever of the user's is imported changes its digest."""

import shutil
import sys
from pathlib import Path

import pytest

from bilateral.models.own_code import source_digest

FILES = {
    "digested.py": "import json\nimport helper\nfrom package.inner import layer\nimport torch\n",
    "helper.py": "def post(logits):\n    return logits\n",
    "package/__init__.py": "from . import beside\n",
    "package/inner.py": "from .deeper.last import value\nlayer = value\n",
    "package/beside.py": "import digested  # a circle\n",
    "package/deeper/__init__.py": "",
    "package/deeper/last.py": "value = 1\n",
}
OTHERS = {"unused.py": "x = 1\n", "package/unused.py": "x = 1\n"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "project"
    for name, text in (FILES | OTHERS).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", FILES)
def test_what_is_imported_counts(project: Path, name: str) -> None:
    before = source_digest(f"{project}/digested.py:build")
    (project / name).write_text(FILES[name] + "\n")
    assert source_digest(f"{project}/digested.py:build") != before


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_imported_does_not(project: Path, name: str) -> None:
    before = source_digest(f"{project}/digested.py:build")
    (project / name).write_text("y = 2\n")
    assert source_digest(f"{project}/digested.py:build") == before


def test_where_it_lies_does_not_matter(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path / "elsewhere")
    here, there = (
        source_digest(f"{place}/digested.py:f") for place in (project, tmp_path / "elsewhere")
    )
    assert here == there


def test_a_module_by_its_name_is_the_same_code(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    assert source_digest("digested:build") == source_digest("digested.py:build")
    before = source_digest("package.inner:layer")
    (project / "package/deeper/last.py").write_text("value = 2\n")
    assert source_digest("package.inner:layer") != before
    assert "helper" not in sys.modules, "nothing was imported for it"


def test_what_is_installed_is_left_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    library = project / "site-packages"
    library.mkdir()
    monkeypatch.syspath_prepend(library)
    (library / "installed.py").write_text("x = 1\n")
    (project / "digested.py").write_text("import installed\n")
    before = source_digest("digested.py:build")
    (library / "installed.py").write_text("x = 2\n")
    assert source_digest("digested.py:build") == before


def test_a_file_that_cannot_be_parsed_counts_by_itself(project: Path) -> None:
    (project / "helper.py").write_text("def (:\n")
    before = source_digest(f"{project}/digested.py:build")
    (project / "helper.py").write_text("def (((:\n")
    assert source_digest(f"{project}/digested.py:build") != before
