"""The documents tell the truth: snippets run, commands exist, generated parts are up to date.

Run as a script this file writes the generated parts of the documents: the measured tables and the
README's tree of modules.
"""

import ast
import contextlib
import importlib
import io
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from torch import nn

import bilateral
from bilateral.attacks.table import attack_names
from bilateral.cli import COMMANDS, main
from bilateral.config import Machine, Run
from bilateral.paper.pages import claims_page, measured_tables, tables_page
from bilateral.paper.recipes import recipe_named
from bilateral.paper.rendering import parity_table, results_table, speed_table
from bilateral.tables import percent, render

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bilateral"
README = ROOT / "README.md"
EVALUATION = ROOT / "docs" / "evaluation.md"
TRAINING = ROOT / "docs" / "training.md"
REPRODUCE = ROOT / "docs" / "reproduce.md"
RESULTS = ROOT / "results"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ROW_FIELDS = ["recipe", "model", "seeds", "epochs", "clean_accuracy", "attacks", "paper"]
ROW_FIELDS += ["train_seconds", "device", "commit", "command"]
PARITY_FIELDS = ["recipe", "model", "attack", "epsilon_text", "images", "peer", "accuracy"]
PARITY_FIELDS += ["peer_accuracy", "mean_distance", "peer_mean_distance", "found", "peer_found"]
PARITY_FIELDS += ["device", "commit", "command"]
BENCH_FIELDS = ["recipe", "model", "device", "commit", "command", "warm_up_seconds", "attacks"]
TRAINING_BENCH_FIELDS = ["recipe", "model", "batch_size", "images_per_second", "tflops"]
TRAINING_BENCH_FIELDS += ["matmul_tflops", "features", "device", "commit", "command"]
TABLES = sorted(path for path in RESULTS.glob("*.json") if path.stem != "parity")
BENCHES = sorted((RESULTS / "bench").glob("evaluate-*.json"))
TRAINING_BENCHES = sorted((RESULTS / "bench").glob("train-*.json"))


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


def training_speed_table(files: list[dict[str, Any]]) -> str:
    """`results/bench/train-*.json`: a row for all features, and for each one switched off."""
    head = ["model", "batch", "features", "images/s", "s an epoch", "TFLOP/s"]
    head += ["of matrix products (%)", "first step (s)"]
    lines = []
    for file in files:
        for name, row in file["features"].items():
            cells = ["-"] * 5
            if row is not None:
                cells = [f"{row['images_per_second']:,.0f}", f"{row['epoch_seconds']:.2f}"]
                cells += [f"{row['tflops']:.0f}", percent(row["share_of_matrix_rate"])]
                cells.append(f"{row['first_step_seconds']:.1f}")
            lines.append([f"`{file['model']}`", f"{file['batch_size']}", name, *cells])
    return "\n".join([render((head, lines), "markdown"), "", *map(origin, files)])


def variants_table(rows: list[dict[str, Any]]) -> str:
    """One recipe in several ways: means in per cent, and what each seed gave."""
    head = ["variant", "epochs", *rows[0]["by_seed"], "images"]
    lines = []
    for row in rows:
        cells = []
        for values in row["by_seed"].values():
            each = ", ".join(f"{100 * value:.2f}" for value in values)
            mean = f"{100 * sum(values) / len(values):.2f}"
            cells.append(f"{mean} ({each})" if len(values) > 1 else mean)
        images = f"{row['attacks']['pgd20']['images']:,}"
        lines.append([row["variant"], str(row["epochs"]), *cells, images])
    return "\n".join([render((head, lines), "markdown"), "", *map(origin, rows)])


def origin(row: dict[str, Any]) -> str:
    """How a row was measured."""
    note = f" Note: {row['note']}." if row.get("note") else ""
    about = row.get("variant") or f"`{row['recipe']}`, {row['model']}"
    return f"- {about}: {row['device']}, commit {row['commit']}; `{row['command']}`.{note}"


def part(name: str) -> str:
    """A generated part by the name in its markers."""
    if name == "modules":
        return module_tree()
    if name == "reproduce":
        return tables_page(measured_tables(RESULTS))
    if name == "claims":
        return claims_page(measured_tables(RESULTS))
    if name == "bench":
        return speed_table([json.loads(path.read_text()) for path in BENCHES])
    if name == "bench-train":
        return training_speed_table([json.loads(path.read_text()) for path in TRAINING_BENCHES])
    if name.startswith("variants:"):
        return variants_table(json.loads((RESULTS / f"{name[9:]}.json").read_text()))
    rows = json.loads((RESULTS / f"{name.removeprefix('results:')}.json").read_text())
    return parity_table(rows) if name == "parity" else results_table(rows)


def generated(text: str) -> str:
    """A document with its generated parts made afresh."""
    return re.sub(
        r"<!-- ([\w:-]+) -->\n.*?<!-- /\1 -->",
        lambda found: f"<!-- {found[1]} -->\n{part(found[1])}\n<!-- /{found[1]} -->",
        text,
        flags=re.S,
    )


def command_lines() -> list[tuple[str, list[str]]]:
    """Every `bilateral ...` line that a document shows, by document."""
    return [
        (path.name, shlex.split(line.partition("bilateral ")[2], comments=True))
        for path in DOCUMENTS
        for block in blocks(path, "console")
        for line in block.splitlines()
        if re.match(r"\$ (torchrun .*-m )?bilateral ", line)
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


def stand_in(features: int) -> nn.Module:
    """A network in place of one that would be downloaded."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 10))


def test_the_snippets_of_evaluation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """timm and RobustBench are played by stand-ins: they are not needed to develop."""
    timm, zoo, models = (ModuleType(name) for name in ("timm", "robustbench", "robustbench.utils"))
    settings = {"mean": (0.5,), "std": (0.25,)}
    timm.create_model = lambda name, pretrained: stand_in(64)  # type: ignore[attr-defined]
    timm.data = SimpleNamespace(  # type: ignore[attr-defined]
        resolve_model_data_config=lambda model: settings
    )
    models.load_model = (  # type: ignore[attr-defined]
        lambda name, dataset, threat_model: stand_in(64).eval()
    )
    for module in (timm, zoo, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    files = []
    for code in blocks(EVALUATION, "python"):
        exec(code, names)
        if title := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / title[1]).write_text(code)
            files.append(title[1])
    assert files == ["from_timm.py", "from_robustbench.py", "blur.py"]
    assert names["result"].attacks["pgd20"].interval and names["diagnosis"].verdict
    capsys.readouterr()
    for file in files[:2]:
        words = f"evaluate {file}:build --data digits --images 20 --quiet --device cpu".split()
        exit_code, _, error = said([*words, "--attacks", "fgsm,blur.py:blurred"])
        assert exit_code == 0, error
        assert "train mode" not in error


def test_messages_of_the_guards_are_those_shown() -> None:
    table = EVALUATION.read_text().split("## Guards")[1].split("\n## ")[0]
    shown = re.findall(r"^\| `([^`]+)`", table, re.M)
    sources = [SOURCE / "evaluation" / "guards.py", SOURCE / "config.py"]
    sources += [SOURCE / "evaluation" / "robustness.py", SOURCE / "attacks" / "ball.py"]
    spoken = {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert len(shown) >= 8
    for message in shown:
        assert any(message in text for text in spoken), message


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
        names = words[words.index("--attacks") + 1].split(",")
        attack_names(",".join(name for name in names if ":" not in name))  # files are the reader's


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


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        (README, ["results:cifar10", "modules"]),
        (EVALUATION, ["parity", "bench"]),
        (TRAINING, ["bench-train", "variants:fast-path", "variants:batch-size"]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_generated_parts_are_up_to_date(document: Path, parts: list[str]) -> None:
    text = document.read_text()
    assert re.findall(r"<!-- ([\w:-]+) -->", text) == parts
    assert re.findall(r"<!-- /([\w:-]+) -->", text) == parts
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


def check_commands(row: dict[str, Any]) -> None:
    """A measurement names a recipe that exists and commands that exist."""
    recipe_named(row["recipe"])
    for command in row["command"].split(" && "):
        assert command.split()[:1] == ["bilateral"] and command.split()[1] in COMMANDS


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_measured_rows_are_complete(path: Path) -> None:
    for row in json.loads(path.read_text()):
        assert set(ROW_FIELDS) <= set(row)
        accuracies = [row["clean_accuracy"], *(one["accuracy"] for one in row["attacks"].values())]
        assert all(0 <= accuracy <= 1 for accuracy in accuracies)
        check_commands(row)


def test_parity_rows_are_complete() -> None:
    """Each row compares one figure or says that there is none."""
    for row in json.loads((RESULTS / "parity.json").read_text()):
        assert set(PARITY_FIELDS) <= set(row)
        attack_names(row["attack"])
        pairs = [(row["accuracy"], row["peer_accuracy"])]
        pairs.append((row["mean_distance"], row["peer_mean_distance"]))
        given = [pair for pair in pairs if pair != (None, None)]
        assert len(given) <= 1 and all(None not in pair for pair in given)
        assert (row["images"] is None) == (not given)
        check_commands(row)


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.name)
def test_benches_are_complete(path: Path) -> None:
    bench = json.loads(path.read_text())
    assert set(BENCH_FIELDS) <= set(bench)
    check_commands(bench)
    for attack in bench["attacks"].values():
        best = min(attack["peer_seconds_by_batch_size"].values())
        assert attack["peer_seconds"] == best
        assert attack["ratio"] == pytest.approx(best / attack["seconds"])


@pytest.mark.parametrize("path", TRAINING_BENCHES, ids=lambda path: path.name)
def test_training_benches_are_complete(path: Path) -> None:
    bench = json.loads(path.read_text())
    assert set(TRAINING_BENCH_FIELDS) <= set(bench)
    check_commands(bench)
    assert bench["images_per_second"] == bench["features"]["all"]["images_per_second"]
    for row in filter(None, bench["features"].values()):
        assert row["share_of_matrix_rate"] == pytest.approx(
            row["tflops"] / bench["matmul_tflops"], abs=1e-4
        )


@pytest.mark.parametrize("name", ["fast-path", "batch-size"])
def test_variants_are_means_of_their_seeds(name: str) -> None:
    for row in json.loads((RESULTS / f"{name}.json").read_text()):
        means = {"clean": row["clean_accuracy"], "pgd20": row["attacks"]["pgd20"]["accuracy"]}
        for measured, values in row["by_seed"].items():
            assert len(values) == len(row["seeds"])
            assert means[measured] == pytest.approx(sum(values) / len(values), abs=1e-6)


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


def test_an_attack_on_fewer_images_says_so() -> None:
    (row,) = json.loads((RESULTS / "cifar10.json").read_text())
    attacks = {
        "pgd20": {"accuracy": 0.5, "images": 1000},
        "apgd": {"accuracy": 0.25, "images": 200},
    }
    line = results_table([{**row, "attacks": attacks}]).splitlines()[2]
    assert "| 50.0 | 25.0 (200) | - | 1,000 |" in line


def test_parity_table_compares_distances_or_accuracies() -> None:
    row: dict[str, Any] = dict.fromkeys(PARITY_FIELDS)
    row |= {"recipe": "a", "model": "b", "peer": "c", "images": 1000, "device": "d", "commit": "e"}
    row |= {"command": "bilateral bench"}
    rows = [
        {**row, "attack": "apgd", "accuracy": 0.25, "peer_accuracy": 0.255},
        {**row, "attack": "cw-l2", "mean_distance": 1.5, "peer_mean_distance": 1.25}
        | {"found": 999, "peer_found": 1000},
        {**row, "attack": "deepfool-l2", "images": None, "note": "too slow"},
    ]
    lines = parity_table(rows).splitlines()
    assert lines[2] == "| `a` | apgd | accuracy (%) | 25.0 | 25.5 | c | 1,000 | - |"
    assert lines[3] == (
        "| `a` | cw-l2 | mean L2 distance | 1.5000 | 1.2500 | c | 1,000 | 999 / 1,000 |"
    )
    assert lines[4] == "| `a` | deepfool-l2 | not measured | - | - | c | - | - |"
    assert lines[5:] == [
        "",
        "- `a`, b: d, commit e; `bilateral bench`.",
        "- `a`, b: d, commit e; `bilateral bench`. Note: too slow.",
    ]


def test_speed_table_tells_the_warm_up_apart() -> None:
    attack: dict[str, Any] = {"images": 100, "seconds": 2.0, "accuracy": 0.5, "peer": "foolbox"}
    attack |= {"peer_seconds": 3.0, "peer_accuracy": 0.25, "peer_batch_size": 50, "ratio": 1.5}
    file: dict[str, Any] = {"recipe": "a", "model": "b", "device": "d", "commit": "e"}
    file |= {"command": "f", "warm_up_seconds": 9.0, "attacks": {"pgd20": attack}}
    assert speed_table([file]).splitlines()[2] == (
        "| `a` | pgd20 | 100 | 2.0 | 50.0 | foolbox | 3.0 (batch 50) | 25.0 | 1.50 | 9.0 | d |"
    )


def test_functions_and_fields_that_are_named_exist() -> None:
    for path in DOCUMENTS:
        words = re.findall(
            r"`(bilateral(?:\.\w+)+|(?:adversary|labels|data|optimiser|machine)\.\w+)`",
            path.read_text(),
        )
        for name in words:
            first, _, rest = name.partition(".")
            if first == "bilateral":
                module, _, function = name.rpartition(".")
                assert hasattr(importlib.import_module(module), function), f"{path.name}: {name}"
            else:
                part = Machine if first == "machine" else type(getattr(Run(), first))
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
    for document in (README, EVALUATION, TRAINING, REPRODUCE):
        document.write_text(generated(document.read_text()))
