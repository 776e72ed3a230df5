"""The documents tell the truth: snippets run, commands exist, generated parts are up to date.

Run as a script this file writes the generated parts of the README: the measured tables and the
tree of modules.
"""

import ast
import contextlib
import importlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import bilateral
from bilateral.attacks.table import attack_names
from bilateral.cli import COMMANDS, main
from bilateral.config import Run
from bilateral.paper.recipes import recipe_named
from bilateral.paper.rendering import results_table

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bilateral"
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ROW_FIELDS = ["recipe", "model", "seeds", "epochs", "clean_accuracy", "attacks", "paper"]
ROW_FIELDS += ["train_seconds", "device", "commit", "command"]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.M | re.S)


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"\. (?=[A-Z`])", paragraph)[0].removesuffix(".")


def module_tree() -> str:
    """Every module with its first sentence; a package stands before its modules."""
    entries = [(f"  {path.name}", path) for path in sorted(SOURCE.glob("*.py"))]
    for package in sorted(path.parent for path in SOURCE.glob("*/__init__.py")):
        entries.append((f"  {package.name}/", package / "__init__.py"))
        modules = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
        entries += [(f"    {path.name}", path) for path in modules]
    width = max(len(name) for name, _ in entries)
    lines = [f"{name:<{width}}  {sentence(path)}" for name, path in entries]
    return "\n".join(["```", "src/bilateral/", *lines, "```"])


def generated(text: str) -> str:
    """The README with its generated parts made afresh."""

    def results(found: re.Match[str]) -> str:
        rows = json.loads((ROOT / "results" / f"{found[1]}.json").read_text())
        return f"<!-- results:{found[1]} -->\n{results_table(rows)}\n<!-- /results -->"

    text = re.sub(r"<!-- results:(\S+) -->\n.*?<!-- /results -->", results, text, flags=re.S)
    tree = f"<!-- modules -->\n{module_tree()}\n<!-- /modules -->"
    return re.sub(r"<!-- modules -->\n.*?<!-- /modules -->", lambda _: tree, text, flags=re.S)


def command_lines() -> list[tuple[str, list[str]]]:
    """Every `bilateral ...` line that a document shows, by document."""
    return [
        (path.name, shlex.split(line.removeprefix("$ "), comments=True)[1:])
        for path in DOCUMENTS
        for block in blocks(path, "console")
        for line in block.splitlines()
        if line.startswith("$ bilateral ")
    ]


def said(words: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    # Streams with an encoding: tyro draws other boxes where it is not UTF-8.
    out, error = io.BytesIO(), io.BytesIO()
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(out, "utf-8", write_through=True)),
        contextlib.redirect_stderr(io.TextIOWrapper(error, "utf-8", write_through=True)),
    ):
        try:
            code = main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, out.getvalue().decode(), error.getvalue().decode()


def test_the_readme_example_runs() -> None:
    (code,) = blocks(README, "python")
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["loss"].requires_grad and names["loss"].isfinite()
    assert (names["adversarial"] - names["images"]).abs().max() <= 8 / 255 + 1e-6
    assert set(names["result"].attacks) == {"pgd20", "autoattack"}
    assert len(names["result"].attacks["autoattack"].robust) == len(names["images"])


def test_the_snippets_of_extending_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for split, count in (("train", 8), ("val", 3)):
        for place, name in enumerate(["cat", "dog", "owl"]):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                colour = (80 * place, 120, 10 * number)
                Image.new("RGB", (24, 20), colour).save(folder / f"{number}.png")
    names: dict[str, Any] = {}
    for code in blocks(ROOT / "docs" / "extending.md", "python"):
        exec(code, names)
        if title := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / title[1]).write_text(code)
    assert "('cat', 'dog', 'owl') (24, 16, 16, 3)" in capsys.readouterr().out
    assert set(names["result"].attacks) == {"fgsm", "pgd10-cw"}
    assert (tmp_path / "runs/digits-two-steps/seed0/model.safetensors").exists()
    words = "evaluate own.py:build --data folder:pictures --image-size 16 --quiet"
    exit_code, _, error = said([*words.split(), "--attacks", "noise.py:corners", "--device", "cpu"])
    assert exit_code == 0, error


def test_every_command_is_documented() -> None:
    text = README.read_text()
    table = re.findall(r"^\| `bilateral ([a-z]+)", text, re.M)
    assert sorted(table) == sorted(COMMANDS)
    (status,) = re.findall(r"^\*\*Status\.\*\* .*?\n\n", text, re.M | re.S)
    assert set(re.findall(r"`([a-z]+)`", status)) == set(COMMANDS)


def test_the_documents_show_commands() -> None:
    shown = {words[0] for name, words in command_lines() if name == "README.md"}
    assert {"demo", "train", "evaluate", "list", "data"} <= shown


@pytest.mark.parametrize(
    ("document", "words"), command_lines(), ids=[" ".join(words) for _, words in command_lines()]
)
def test_commands_that_are_shown_exist(document: str, words: list[str]) -> None:
    assert words[0] in COMMANDS, document
    named = [words[0]]
    if words[0] in ("bench", "data", "list"):
        named.append(words[1])
    elif words[0] == "train" and not words[1].endswith(".json"):
        if f"$ bilateral {' '.join(words)}\nbilateral: " in README.read_text():
            return  # an example of bad input: its answer is compared below
        recipe_named(words[1])
        named.append(words[1])
    code, text, _ = said([*named, "--help"])
    assert code == 0
    options = set(re.findall(r"--[\w.-]+", text))
    for word in words:
        assert not word.startswith("--") or word in options, f"{document}: no option {word}"
    if "--attacks" in words:
        attack_names(words[words.index("--attacks") + 1])


def test_bad_input_is_answered_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^\$ bilateral (.*)\n(bilateral: .*\n)", README.read_text(), re.M)
    assert len(shown) >= 2
    for words, answer in shown:
        assert said(shlex.split(words)) == (2, "", answer)
    assert not list(tmp_path.iterdir())


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    shown = {
        target
        for path in DOCUMENTS
        for block in blocks(path, "console")
        for target in re.findall(r"^\$ make (\w+)", block, re.M)
    }
    assert {"demo", "test"} <= shown <= targets


def test_generated_parts_are_up_to_date() -> None:
    text = README.read_text()
    assert text.count("<!-- results:") == text.count("<!-- /results -->") > 0
    assert text == generated(text), "run `python tests/test_docs.py`"


def test_the_tree_has_every_module_and_no_other() -> None:
    tree = README.read_text().split("<!-- modules -->")[1].split("<!-- /modules -->")[0]
    named, folder = set(), ""
    for line in tree.splitlines():
        if found := re.match(r"^( +)(\w+)(/|\.py)", line):
            if found[3] == "/":
                folder = found[2]
                named.add(f"{folder}/__init__.py")
            else:
                named.add(f"{folder}/{found[2]}.py" if len(found[1]) > 2 else f"{found[2]}.py")
    assert named == {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda p: p.name)
def test_measured_rows_are_complete(path: Path) -> None:
    for row in json.loads(path.read_text()):
        assert set(ROW_FIELDS) <= set(row)
        recipe_named(row["recipe"])
        accuracies = [row["clean_accuracy"], *(one["accuracy"] for one in row["attacks"].values())]
        assert all(0 <= accuracy <= 1 for accuracy in accuracies)
        for command in row["command"].split(" && "):
            assert command.split()[:1] == ["bilateral"] and command.split()[1] in COMMANDS


def test_results_table_puts_the_paper_below_and_keeps_autoattacks_place() -> None:
    row: dict[str, Any] = {
        "recipe": "cifar10-r-mc-la",
        "model": "preact-resnet-18",
        "seeds": [0, 1],
        "epochs": 30,
        "clean_accuracy": 0.75,
        "attacks": {"pgd20": {"accuracy": 0.5, "images": 1000}},
        "paper": {"network": "wrn-28-10", "epochs": 100, "clean": 0.907, "pgd20": 0.553},
        "train_seconds": 1234.4,
        "device": "a GPU",
        "commit": "abc",
        "command": "bilateral train x",
    }
    lines = results_table([row, {**row, "paper": {}, "note": "again"}]).splitlines()
    assert lines[0].split(" | ")[3:6] == ["clean", "pgd20", "autoattack"]
    assert lines[2] == (
        "| `cifar10-r-mc-la` | preact-resnet-18 | 30 | 75.0 | 50.0 | - | 1,000 | 1,234 |"
    )
    assert lines[3] == "| as printed in the paper | wrn-28-10 | 100 | 90.7 | 55.3 | - |  |  |"
    assert lines[4] == lines[2] and lines[5] == ""
    assert "a GPU, commit abc, seeds 0, 1" in lines[6] and "`bilateral train x`" in lines[6]
    assert lines[7].endswith("Note: again.")
    measured = {**row, "attacks": {"autoattack": {"accuracy": 0.25, "images": 1000}}}
    assert "| 25.0 | 1,000 |" in results_table([measured])


def test_functions_and_fields_that_are_named_exist() -> None:
    for path in DOCUMENTS:
        words = re.findall(
            r"`(bilateral(?:\.\w+)+|(?:adversary|labels|data|optimiser)\.\w+)`", path.read_text()
        )
        for name in words:
            first, _, rest = name.partition(".")
            if first == "bilateral":
                module, _, function = name.rpartition(".")
                assert hasattr(importlib.import_module(module), function), f"{path.name}: {name}"
            else:
                part = type(getattr(Run(), first))
                assert rest in part.model_fields, f"{path.name}: {name}"
    assert len(re.findall(r"`bilateral\.\w+", (ROOT / "docs/method.md").read_text())) > 10


def test_every_equation_is_in_the_table_once() -> None:
    found: list[int] = []
    table = (ROOT / "docs" / "method.md").read_text()
    for cell in re.findall(r"^\| (\d[\d, to]*) \|", table, re.M):
        numbers = [int(number) for number in re.findall(r"\d+", cell)]
        found += range(numbers[0], numbers[1] + 1) if "to" in cell else numbers
    assert sorted(found) == list(range(1, 35))


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not target.startswith("https://"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"
        for target in re.findall(r"`((?:src|tests|docs|results)/[\w./]+)`", path.read_text()):
            assert (ROOT / target).exists(), f"{path.name}: {target}"


def test_changelog_and_citation_have_the_version() -> None:
    version = bilateral.__version__
    assert re.search(rf"^## \[{re.escape(version)}\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^version: {re.escape(version)}$", citation, re.M)
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()


if __name__ == "__main__":
    README.write_text(generated(README.read_text()))
