"""The tables hold what the paper prints, and ask for what exists."""

import json
import subprocess
import sys

import pytest

from bilateral.attacks.table import attack_members
from bilateral.config import GradientAttack
from bilateral.paper.beyond import EVERY_TABLE
from bilateral.paper.recipes import RECIPES, recipe_named
from bilateral.paper.tables import (
    AUTOATTACK,
    COSTLY,
    TABLES,
    Attack,
    Clean,
    Gradient,
    Transfer,
)

CONTRACT = """
motivation-steps motivation-gradients random-start attack-strength cifar10 steps-figure budget
black-box svhn imagenet other-attacks data-size cifar100 gradients label-formulas
"""
GRADIENTS = ("motivation-gradients", "gradients")
ACCURACIES = [name for name in TABLES if name not in GRADIENTS]
QUOTED = {
    ("cifar10", "Madry"),
    ("imagenet", "ALP-IncepV3"),
    ("imagenet", "feature denoising-R152"),
    ("other-attacks", "TRADES"),
    ("gradients", "ImageNet undefended"),
}
# table, row, column, what the paper prints
SPOTS = [
    ("motivation-steps", "PGD2-8", "PGD100-2", 46.2),
    ("motivation-gradients", "undefended", "wrong mean", 7.4e3),
    ("motivation-gradients", "adversarially trained", "correct max", 85.9),
    ("random-start", "FGSM", "FGSM w.o. RS", 99.1),
    ("random-start", "R-MC", "black", 87.1),
    ("attack-strength", "R-LL", "MC RS", 55.6),
    ("cifar10", "Madry-LA+", "CE20", 57.5),
    ("budget", "R-MC-LA+ (eps 4)", "CW1000", 59.3),
    ("black-box", "R-MC-LA", "another R-MC-LA CE20", 71.0),
    ("svhn", "Madry*", "CW100", 43.4),
    ("imagenet", "ALP-IncepV3", "CE10-rd", 27.9),
    ("other-attacks", "R-MC-LA+", "Ori-CW fine", 88.2),
    ("other-attacks", "TRADES", "DF-l2", 81.6),
    ("data-size", "R-MC-LA (0.5K)", "clean", 73.3),
    ("cifar100", "R-MC-LA9+", "FGSM", 36.9),
    ("gradients", "SVHN madry", "max", 15.3),
    ("label-formulas", "R-MC-LA (sup)", "CW100", 49.9),
]


def settings_of(table, column):
    """The attack of a column at its table's budget."""
    (settings,) = attack_members(column.measure.name, table.pixels / 255).values()
    return settings


def column_of(name, title):
    (column,) = [column for column in TABLES[name].columns if column.title == title]
    return column


def row_of(name, title):
    (row,) = [row for row in TABLES[name].rows if row.title == title]
    return row


def test_every_table_of_the_contract_is_there_in_the_papers_order():
    assert list(TABLES) == CONTRACT.split()
    assert all(name == table.name for name, table in TABLES.items())
    numbered = [table.where.split()[1] for table in TABLES.values() if not table.is_figure]
    assert numbered == [str(number) for number in range(1, 15)]
    figures = [(name, table.where) for name, table in TABLES.items() if table.is_figure]
    assert figures == [("steps-figure", "Figure 1")]


@pytest.mark.parametrize("name", TABLES)
class TestEveryTable:
    def test_asks_for_recipes_and_attacks_that_exist(self, name):
        table = TABLES[name]
        recipes = {row.recipe for row in table.rows if row.recipe is not None}
        for column in table.columns:
            if isinstance(column.measure, Attack):
                attack_members(column.measure.name, table.pixels / 255)
            elif isinstance(column.measure, Transfer):
                attack_members(column.measure.attack, table.pixels / 255)
                recipes |= {column.measure.source} - {None}
        assert recipes and recipes <= set(RECIPES)

    def test_titles_are_unique_and_figures_belong_to_columns(self, name):
        table = TABLES[name]
        titles = [column.title for column in table.columns]
        assert len(set(titles)) == len(titles)
        assert len({row.title for row in table.rows}) == len(table.rows)
        assert all(set(row.printed) <= set(titles) for row in table.rows)

    def test_plus_rows_are_the_long_ones(self, name):
        for row in TABLES[name].rows:
            if row.recipe is not None:
                assert ("+" in row.title) == row.recipe.endswith("-long"), row.title

    def test_budgets_in_titles_are_the_recipes(self, name):
        for row in TABLES[name].rows:
            if "(eps " in row.title:
                pixels = int(row.title.split("(eps ")[1].rstrip(")"))
                epsilon = recipe_named(row.recipe).adversary.epsilon
                assert epsilon == pytest.approx(pixels / 255)


@pytest.mark.parametrize("name", ACCURACIES)
class TestEveryTableOfAccuracies:
    def test_ends_with_autoattack(self, name):
        assert TABLES[name].columns[-1] is AUTOATTACK
        assert all("AutoAttack" not in row.printed for row in TABLES[name].rows)

    def test_figures_are_per_cent(self, name):
        assert all(0 <= value <= 100 for row in TABLES[name].rows for value in row.printed.values())

    def test_looks_at_the_last_iterate(self, name):
        """Attacks by gradients follow the paper's protocol, all but AutoAttack's."""
        table = TABLES[name]
        for column in table.columns[:-1]:
            if isinstance(column.measure, Attack):
                settings = settings_of(table, column)
                assert getattr(settings, "iterate", "last") == "last", column

    def test_long_attacks_see_fewer_images(self, name):
        table = TABLES[name]
        for column in table.columns[:-1]:
            if isinstance(column.measure, Attack):
                settings = settings_of(table, column)
                cheap = isinstance(settings, GradientAttack) and settings.steps < 100
                assert column.images == (None if cheap else COSTLY), column
            elif isinstance(column.measure, Clean | Transfer):
                assert column.images is None


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_tables_measure_gradients_alone(name):
    assert all(isinstance(column.measure, Gradient) for column in TABLES[name].columns)
    scales = {column.measure.scale for column in TABLES[name].columns}
    assert scales == {"[-1, 1]" if name == "motivation-gradients" else "[0, 255]"}


@pytest.mark.parametrize(("name", "row", "column", "value"), SPOTS)
def test_figures_are_the_papers(name, row, column, value):
    assert row_of(name, row).printed[column] == value


def test_all_but_our_own_figures_are_there():
    """What the paper leaves out: the figure, our TRADES, and cells that it does not print."""
    empty = {
        (name, row.title)
        for name, table in TABLES.items()
        for row in table.rows
        if not row.printed and not table.is_figure
    }
    assert empty == {("other-attacks", "TRADES (ours)")}
    assert not any(row.printed for row in TABLES["steps-figure"].rows)
    printed = sum(len(row.printed) for table in TABLES.values() for row in table.rows)
    assert printed == 12 + 18 + 36 + 18 + 44 + 32 + 10 + 25 + 22 + 13 + 15 + 25 + 18 + 20


def test_quoted_rows_are_other_peoples():
    quoted = {(name, row.title) for name in TABLES for row in TABLES[name].rows if row.quoted}
    assert quoted == QUOTED


@pytest.mark.parametrize(
    ("name", "title", "steps", "pixels", "start"),
    [
        ("motivation-steps", "PGD2-8", 2, 8, True),
        ("motivation-steps", "PGD20-2", 20, 2, True),
        ("random-start", "FGSM w.o. RS", 1, 8, False),
        ("random-start", "FGSM RS", 1, 8, True),
        ("random-start", "CE7 w.o. RS", 7, 2, False),
        ("random-start", "CE7 RS", 7, 2, True),
        ("steps-figure", "1", 1, 8, False),
        ("steps-figure", "200", 200, 2, True),
        ("imagenet", "CE10-nt", 10, 1.6, True),
        ("imagenet", "CE100-rd", 100, 1, True),
    ],
)
def test_steps_and_starts_are_the_papers(name, title, steps, pixels, start):
    settings = settings_of(TABLES[name], column_of(name, title))
    assert (settings.steps, settings.random_start) == (steps, start)
    assert settings.step_size == pytest.approx(pixels / 255)


def test_losses_and_targets_are_the_titles():
    for name, table in TABLES.items():
        for column in table.columns[:-1]:
            if not isinstance(column.measure, Attack):
                continue
            settings = settings_of(table, column)
            if column.title.startswith(("CE", "CW")):
                margin = column.title.startswith("CW")
                assert settings.loss == ("margin" if margin else "cross-entropy"), (name, column)
            if name == "imagenet":
                assert (settings.target == "random") == column.title.endswith("-rd")
    target = settings_of(
        TABLES["attack-strength"], column_of("attack-strength", "LL w.o. RS")
    ).target
    assert target == "least-likely"


def test_black_box_sources():
    titles = ("undefended FGSM", "undefended CE20", "another R-MC-LA FGSM", "another R-MC-LA CE20")
    assert [column_of("black-box", title).measure for title in titles] == [
        Transfer("fgsm", "cifar10-undefended"),
        Transfer("pgd20", "cifar10-undefended"),
        Transfer("fgsm", None),
        Transfer("pgd20", None),
    ]


def test_fields_of_rows_override_the_recipe():
    counts = []
    for row in TABLES["data-size"].rows:
        data = recipe_named(row.recipe).data
        changes = {path.removeprefix("data."): value for path, value in row.fields.items()}
        counts.append(data.with_fields(**changes).images_per_class)
    assert counts == [None, 2000, 500]
    assert not any(
        row.fields for name in TABLES if name != "data-size" for row in TABLES[name].rows
    )


def test_list_tables_says_where_they_stand():
    def said(*words):
        command = [sys.executable, "-m", "bilateral", "list", "tables", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    rows = json.loads(said("--json"))
    listed = EVERY_TABLE.values()
    assert [row["name"] for row in rows] == [table.name for table in listed]
    lines = said().splitlines()
    for line, row, table in zip(lines, rows, listed, strict=True):
        assert row["summary"] == f"{table.where}: {table.title}"
        assert line.split(maxsplit=1) == [table.name, row["summary"]]


def test_tables_and_claims_need_no_torch():
    code = "import sys, bilateral.paper.claims, bilateral.paper.tables as tables; "
    code += "assert tables.TABLES and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
