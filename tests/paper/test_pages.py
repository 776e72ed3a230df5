"""The pages of the paper's tables: what was measured, all of it, and how."""

import json

import pytest

from bilateral.paper.pages import (
    beyond_page,
    first_figure,
    headline,
    measured_tables,
    tables_page,
)
from bilateral.paper.side_by_side import interval_of
from bilateral.paper.tables import TABLES

ROW = {
    "title": "R-MC-LA",
    "model": "wrn-28-10",
    "seeds": [0],
    "epochs": 100,
    "clean_accuracy": 0.9046,
    "attacks": {
        "pgd20-last": {"accuracy": 0.5466, "images": 10000},
        "autoattack": {"accuracy": 0.364, "images": 1000},
    },
    "other": {},
    "train_seconds": 838.9,
    "device": "a GPU",
    "commit": "abc",
    "command": "bilateral reproduce cifar10",
    "note": "with a note",
}


def results(**tables):
    return {name: tables.get(name, []) for name in TABLES}


def test_rows_are_read_by_table(tmp_path):
    (tmp_path / "cifar10.json").write_text(json.dumps([ROW, {"recipe": "of before titles"}]))
    (tmp_path / "parity.json").write_text("[]")
    found = measured_tables(tmp_path)
    assert set(found) == set(TABLES)
    assert found["cifar10"] == [ROW] and found["budget"] == []


def test_the_first_figure_is_of_the_longest_schedule():
    short = {**ROW, "model": "preact-resnet-18", "epochs": 30}
    head, _, line = first_figure(results(cifar10=[short, ROW])).splitlines()
    assert head == (
        "| CIFAR-10, wrn-28-10, 100 epochs of R-MC-LA | clean "
        "| PGD-20 at 8/255, last step (n = 10,000) "
        "| AutoAttack at 8/255 (n = 1,000) |"
    )
    assert line == "| accuracy (%) | 90.5 | 54.7 | **36.4** [33.5, 39.4] |"
    few = {**ROW, "clean_images": 20, "test_images": 10000}
    line = first_figure(results(cifar10=[few])).splitlines()[2]
    assert line == "| accuracy (%) | 90.5 (n = 20) | 54.7 | **36.4** [33.5, 39.4] |"


def test_the_headline_has_the_method_and_our_recipes(tmp_path):
    (tmp_path / "cifar10.json").write_text(json.dumps([{**ROW, "epochs": 30}, ROW]))
    attacks = {"pgd20": {"accuracy": 0.52, "images": 10000}}
    attacks["autoattack"] = {"accuracy": 0.47, "images": 10000, "by_seed": [0.46, 0.48]}
    own = {**ROW, "title": "cifar10-fast", "seeds": [0, 1], "attacks": attacks}
    own["train_seconds_by_seed"] = [60, 58.7]
    method = (
        "| R-MC-LA, the paper's method | wrn-28-10 | 839 s | 90.5 | 54.7 | **36.4** [33.5, 39.4] "
        "| 1 model, 1,000 images |"
    )
    assert headline(tmp_path).splitlines()[2:] == [method], "ours are not measured yet"
    (tmp_path / "beyond.json").write_text(json.dumps([own]))
    head, _, *lines = headline(tmp_path).splitlines()
    assert head == (
        "| CIFAR-10 at 8/255 | network | trained in | clean | PGD-20 | AutoAttack | of |"
    )
    assert lines == [
        method,
        "| `cifar10-fast` | wrn-28-10 | 59 s | 90.5 | 52.0 | **47.0** (46.0 to 48.0) "
        "| 2 models, 10,000 images |",
    ]
    assert "- cifar10-fast (wrn-28-10, trained in 59 to 60 s): " in beyond_page(tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, " [33.5, 39.4]"),
        ({"seeds": [0, 1]}, ""),
        (
            {
                "seeds": [0, 1, 2],
                "attacks": {
                    "autoattack": {"accuracy": 0.5, "images": 90, "by_seed": [0.52, 0.47, 0.51]}
                },
            },
            " (47.0 to 52.0)",
        ),
        ({"attacks": {"autoattack": {"accuracy": 0.364}}}, ""),
        ({"attacks": {}}, ""),
        ({"attacks": {"autoattack": {"accuracy": 0.0, "images": 100}}}, " [0.0, 3.7]"),
    ],
)
def test_an_interval_is_of_one_model_on_known_images(changes, text):
    assert interval_of({**ROW, **changes}, "autoattack") == text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "cpu", "train_device": "NVIDIA H200"}, "839 s on NVIDIA H200): cpu"),
        (
            {"device": "NVIDIA H200 and cpu", "train_device": "NVIDIA H200"},
            "839 s on NVIDIA H200): NVIDIA H200 and cpu",
        ),
        ({"device": "NVIDIA H200", "train_device": "NVIDIA H200"}, "839 s): NVIDIA H200"),
        ({"train_device": ""}, "839 s): a GPU"),
    ],
)
def test_training_elsewhere_is_said(changes, said):
    text = tables_page(results(cifar10=[{**ROW, **changes}]))
    assert f"- R-MC-LA (wrn-28-10, trained in {said}, commit abc" in text


def test_a_network_beside_another_has_a_line_of_its_own():
    small = {**ROW, "model": "preact-resnet-18", "epochs": 30, "jobs": 3}
    text = tables_page(results(cifar10=[ROW, small]))
    assert "| R-MC-LA | preact-resnet-18 | 30 |" in text and "| R-MC-LA | wrn-28-10 |" in text
    assert "R-MC-LA (preact-resnet-18, trained in 839 s): a GPU, commit abc, seed 0, 3 models" in (
        text
    )


def test_the_page_has_every_table_and_says_what_is_not_measured():
    page = tables_page(results(cifar10=[ROW]))
    sections = dict(
        zip(TABLES, page.split("### ")[1:], strict=True)  # a section a table, in order
    )
    for name, table in TABLES.items():
        assert sections[name].startswith(f"{table.where}: `{name}`\n\n{table.title}.")
        assert sections[name].count("\n| ") == 2 + len(table.rows), "every row of the paper"
        assert ("Not measured yet." in sections[name]) == (name != "cifar10")
    assert "- R-MC-LA (wrn-28-10, trained in 839 s): a GPU" in sections["cifar10"]
    assert "Note: with a note." in sections["cifar10"]
    assert "| R-MC |  |  |  | (89.9) |" in sections["cifar10"], "the paper's alone in brackets"
    assert ".svg" not in page


def test_a_measured_figure_is_shown():
    title = TABLES["steps-figure"].rows[0].title
    page = tables_page(results(**{"steps-figure": [{**ROW, "title": title}]}))
    assert f"![{TABLES['steps-figure'].title}](../results/steps-figure.svg)" in page
