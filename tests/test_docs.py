"""The documents tell the truth: snippets run, commands exist, generated parts are up to date.

Run as a script this file writes the generated parts of the documents: the measured tables and the
README's tree of modules.
"""

import ast
import contextlib
import importlib
import io
import json
import math
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
from bilateral.commands.sweep import read_plan, runs_of
from bilateral.config import Run
from bilateral.evaluation.checks import CHECKS
from bilateral.machine import Machine
from bilateral.paper.pages import (
    beyond_page,
    claims_page,
    first_figure,
    headline,
    measured_tables,
    tables_page,
)
from bilateral.paper.recipes import recipe_named
from bilateral.paper.rendering import (
    diagnosis_table,
    guard_table,
    parity_table,
    readings_table,
    results_table,
    variants_table,
)
from bilateral.paper.speed import aims_table, speed_table, training_speed_table
from bilateral.paper.studies import crossed_page, ranking_page
from documents import (
    BENCHES,
    CIFAR10_STUDIES,
    DOCUMENTS,
    EVALUATION,
    GENERATED,
    PROSE,
    README,
    REPRODUCE,
    RESULTS,
    ROOT,
    SOURCE,
    STUDIES,
    TRAINING,
    TRAINING_BENCHES,
    WHAT_HOLDS,
)


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


def read(*paths: Path) -> list[Any]:
    """What JSON files hold."""
    return [json.loads(path.read_text()) for path in paths]


def aims(which: str) -> str:
    """What has an aim: of attacks, of training, or of both on a GPU."""
    evaluations = read(*BENCHES) if which != "training" else []
    trainings = read(*TRAINING_BENCHES) if which != "attacks" else []
    if which == "gpu":
        evaluations = [file for file in evaluations if not file["device"].startswith("cpu")]
    return aims_table(evaluations, trainings, read(RESULTS / "batch-size.json")[0])


def part(name: str) -> str:
    """A generated part by the name in its markers."""
    if name == "modules":
        return module_tree()
    pages = {"reproduce": tables_page, "claims": claims_page, "figure": first_figure}
    if name in pages:
        return pages[name](measured_tables(RESULTS))
    own = {"beyond": beyond_page, "headline": headline}
    if name in own:
        return own[name](RESULTS)
    if name == "bench":
        return speed_table(read(*BENCHES))
    if name == "bench-train":
        return training_speed_table(read(*TRAINING_BENCHES))
    kind, _, rest = name.partition(":")
    if kind == "aims":
        return aims(rest)
    if kind in ("crossed", "ranking"):
        page = crossed_page if kind == "crossed" else ranking_page
        return page(RESULTS / "sweeps" / f"{rest}.json")
    (rows,) = read(RESULTS / f"{rest or kind}.json")
    if kind.startswith("diagnose-"):
        return diagnosis_table(rows)
    tables = {"parity": parity_table, "variants": variants_table, "guard": guard_table}
    tables |= {"results": results_table, "late-collapse": readings_table}
    tables |= {"late-rescue": readings_table}
    return tables[kind](rows)


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


def test_the_snippet_of_method_draws_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on the digits plays the one on CIFAR-10."""
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "docs" / "method.md", "python")
    (named,) = re.findall(r'folder = "runs/(.*)/seed0"', code)
    words = f"train digits-r-mc-la --name {named} --epochs 1 --check-epochs 0 --device cpu --quiet"
    assert said(words.split())[0] == 0
    names: dict[str, Any] = {}
    exec(code, names)
    assert Path("labels.svg").read_bytes().startswith(b"<?xml")
    for example in names["examples"]:
        wrong = [share for place, share in enumerate(example.labels["as given"]) if share == 0]
        assert len(wrong) == 9 and example.labels["as given"][example.label] == 1
        main = example.labels["main formula"]
        assert main[example.label] == pytest.approx(
            9 * max(main[: example.label] + main[example.label + 1 :])
        )


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
    sources = [SOURCE / "evaluation" / "guards.py", SOURCE / "budgets.py"]
    sources += [SOURCE / "evaluation" / "robustness.py", SOURCE / "attacks" / "inputs.py"]
    sources += [SOURCE / "attacks" / "losses.py"]
    spoken = {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert len(shown) >= 8
    for message in shown:
        assert any(message in text for text in spoken), message


def test_the_first_screen_of_the_readme_answers() -> None:
    """What it is, how to install it, one command, one measured figure; the tree comes last."""
    text = README.read_text()
    lines = text.splitlines()
    first = "\n".join(lines[:25])
    answers = ("trains image classifiers", "pip install", "bilateral demo", "<!-- headline -->")
    for answer in answers:
        assert answer in first, answer
    assert re.search(r"\*\*\d+\.\d\*\* \[\d+\.\d, \d+\.\d\]", first), "with its interval"
    tree = text.index("<!-- modules -->")
    assert "<details>" in text[tree - 100 : tree] and not re.search(r"^## ", text[tree:], re.M)


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


def test_sweeps_that_documents_show_can_be_planned(tmp_path: Path) -> None:
    shown = [block for path in PROSE for block in blocks(path, "toml")]
    assert shown
    for block in shown:
        (tmp_path / "choice.toml").write_text(block)
        plan = read_plan(tmp_path / "choice.toml")
        found = dict(runs_of(plan))
        places = math.prod(map(len, [*plan.grid.values(), *plan.choices.values()]))
        assert len(found) == places * len(plan.runs) * len(plan.seeds)


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
        (README, ["headline", "aims:gpu", "modules"]),
        (
            EVALUATION,
            [
                "parity",
                "bench",
                "aims:attacks",
                "diagnose-digits",
                "diagnose-cifar10",
                "diagnose-beyond",
            ],
        ),
        (
            TRAINING,
            [
                *("bench-train", "aims:training", "variants:fast-path", "variants:batch-size"),
                *("variants:guard-acting", "late-collapse", "late-rescue"),
                *("variants:guard-average", "guard"),
            ],
        ),
        (REPRODUCE, ["claims", "reproduce", "results:preact-first"]),
        (
            WHAT_HOLDS,
            [
                *("beyond", "figure", "crossed:halves", "crossed:halves-small"),
                "crossed:halves-small-seeds",
                *(
                    "crossed:halves-digits",
                    "crossed:halves-seeds",
                    "variants:folder-sample",
                    "diagnose-folder",
                ),
            ],
        ),
        (
            STUDIES,
            [
                *(f"ranking:{study}" for study in CIFAR10_STUDIES[:-3]),
                *("ranking:turn-small", "ranking:turned", "ranking:minute"),
                *("ranking:overfit-small", "ranking:overfit", "ranking:steps-small"),
                *("ranking:steps-small-seed", "ranking:own-digits"),
                *("ranking:own-photographs", "ranking:own-few", "ranking:own-middle"),
                *("ranking:own-turn-photographs", "ranking:own-turn"),
                *("ranking:own-varied-photographs", "ranking:own-varied"),
                *("ranking:own-source", "ranking:own-source-turn"),
            ],
        ),
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


FIGURE = re.compile(
    r"""\d[\d,.]*\ ?%                                    # a share
    | \d[\d,.]*\ (?:points?|times|GB|MB|s|ms|seconds|minutes|hours|images\ a\ second|TFLOP/s)\b
    | (?<![.\d])\d{2}\.\d{1,2}\b(?!\.)                 # an accuracy without its unit
    | (?<!Python\ )\b[1-9]\.\d\d\b(?!\.)               # a ratio
    | \b\d{1,3},\d{3}\b(?!\ (?:discordant\ )?images)   # a rate without its unit
    """,
    re.X,
)
"""What looks like a measured accuracy, rate or time."""

QUOTED = {
    "58.6 %": "their repository",
    "29.35 %": "RobustBench",
    "92.80 %": "RobustBench",
    "55.2 %": "in the paper",
    "99.1 %": "in the paper",
    "0.0 %": "in the paper",
    **dict.fromkeys(
        ("83.34", "43.21", "78.6", "47.8", "81.0", "50.1", "82.2", "50.75"), "published"
    ),
    **dict.fromkeys(("82.4", "50.5", "84.9", "53.1", "53.15"), "published"),
}
"""Figures of others; the source stands in the same paragraph."""

SETTINGS = [
    "A tour in 60 seconds",
    "1,797 handwritten digits",
    "50,000 / 10,000 images re-cropped",
    "the official 73,257 / 26,032",
    "leads by 2 % of the largest one",
    "gives 20 points more clean accuracy",
    "95 % Wilson interval",
    "95 % interval",
    "95 % lower bound",
    "noise in 95 % of the ball",
    'the plain reading ("13 points and more")',
    "up to 2,048 rows",
    "not above the peer's by more than 0.3 points",
    "distances within 2 % or smaller",
    "at least 3 times as fast as pyautoattack",
    "at least 35 % robust accuracy",
    "1.5 times on two CPU cores",
    "at least 1.5 times as fast as foolbox's",
    "use 1,000 anyway",
    "The pictures of a page end at 4 MB",
    "stay under 5 s and 10 MB",
    "at least 6,000 images a second, better 7,500",
    "at least 38,000, better 50,000",
    "8 to 100 % of the area",
    "of fewer than 5,000",
    "fewer than 5,000 photographs",
    "torch tells from 2.11 on",
    "more than 1 % are unreadable",
]
"""Limits, aims and settings, with the words around them."""


def prose(document: Path) -> list[str]:
    """The paragraphs, lines of tables and items of a document, without code and generated parts."""
    text = re.sub(r"<!-- ([\w:-]+) -->\n.*?<!-- /\1 -->", "\n", document.read_text(), flags=re.S)
    text = re.sub(r"^```.*?^```", "\n", text, flags=re.M | re.S)
    parts = re.split(r"\n\s*\n|\n(?=\||[-*] |\d\. )", text)
    return [" ".join(part.split()) for part in parts if part.strip()]


def measured_figures(paragraph: str) -> list[str]:
    """The figures of a paragraph that are neither settings nor quoted with their source."""
    if (row := re.match(r"\| `([a-z-]+)` \|", paragraph)) and row[1] in CHECKS:
        return []  # limits, held against the source by the tests of `diagnose`
    for words in SETTINGS:
        paragraph = paragraph.replace(words, "")
    quoted = [figure for figure, source in QUOTED.items() if source in paragraph]
    return [figure for figure in FIGURE.findall(paragraph) if figure not in quoted]


@pytest.mark.parametrize("document", PROSE, ids=lambda path: path.name)
def test_no_measured_figure_stands_in_prose(document: Path) -> None:
    """Measured figures are rendered from `results/`, with where they come from."""
    found = {part: measured_figures(part) for part in prose(document)}
    assert not {part: figures for part, figures in found.items() if figures}


def test_every_exception_is_needed() -> None:
    text = " ".join(part for document in PROSE for part in prose(document))
    for words in [*SETTINGS, *QUOTED, *QUOTED.values()]:
        assert words in text, f"no document says {words!r} any more"


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("PGD-20 leaves 36.8 and AutoAttack 32.1 %.", ["36.8", "32.1 %"]),
        ("It takes 54.8 s, 3.6 times as long, at 6,038 images a second.",
         ["54.8 s", "3.6 times", "6,038 images a second"]),
        ("Means differ by 0.45 points.", ["0.45 points"]),
        ("On a GPU: 1.33; the median is 6,038.", ["1.33", "6,038"]),
        ("The public model keeps 29.35 % (RobustBench).", []),
        ("Ours keeps 29.35 %.", ["29.35 %"]),
        ("8/255 in torch 2.11.0, Python 3.11, commit c1ef7cb, 10 steps, 1,000 images.", []),
    ],
)  # fmt: skip
def test_figures_are_found(text: str, figures: list[str]) -> None:
    assert measured_figures(text) == figures


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


def anchors(path: Path) -> set[str]:
    """What a link may name of a document: its headings, as they are linked to."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target, place in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", path.read_text()):
            if not target.startswith("https://"):
                found = path.parent / target if target else path
                assert found.exists(), f"{path.name}: {target}"
                assert not place or place in anchors(found), f"{path.name}: {target}#{place}"
        for target in re.findall(r"`((?:src|tests|docs|results)/[\w./]+)`", path.read_text()):
            assert (ROOT / target).exists(), f"{path.name}: {target}"


def test_changelog_and_citation_have_the_version() -> None:
    version = bilateral.__version__
    assert re.search(rf"^## \[{re.escape(version)}\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^version: {re.escape(version)}$", citation, re.M)
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()


if __name__ == "__main__":
    for document in GENERATED:
        document.write_text(generated(document.read_text()))
