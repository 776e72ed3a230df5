"""Drawings show what they are given: the curves of a figure, and labels with their true class."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from bilateral.paper.figures import COLOURS, LabelExample, curve_figure, label_chart
from bilateral.paper.plan import Choices
from bilateral.paper.tables import TABLES

SVG = "{http://www.w3.org/2000/svg}"
CLASSES = ("cat", "dog", "owl")


def example(label, channels=3, **labels):
    pixels = np.full((4, 4, channels), 40 * label, dtype=np.uint8)
    return LabelExample(pixels, label, {name.replace("_", " "): s for name, s in labels.items()})


def bars(drawing, colour):
    """The heights of a colour's bars, those of the axes first and the legend's last."""
    found = []
    for path in ElementTree.fromstring(drawing).iter(f"{SVG}path"):
        if f"fill: {colour.lower()}" in path.get("style", ""):
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", path.get("d"))]
            found.append(max(numbers[1::2]) - min(numbers[1::2]))
    return found


def comments(drawing):
    """What is written: matplotlib keeps the words beside the paths of their letters."""
    return re.findall(r"<!-- (.*?) -->", drawing.decode())


def test_labels_are_drawn_with_the_wrong_classes_apart():
    shown = example(1, as_given=[0, 1, 0], main=[0.1, 0.6, 0.3])
    drawing = label_chart([shown, example(2, as_given=[0, 0, 1], main=[0.3, 0.2, 0.5])], CLASSES)
    given, main = bars(drawing, COLOURS[0]), bars(drawing, COLOURS[1])
    assert len(given) == 2 + 1, "true classes, and the legend's: the wrong ones have nothing"
    assert len(main) == 2 * (1 + 3) + 1
    assert main[0] / given[0] == pytest.approx(0.6, abs=1e-3)
    assert main[1] / main[3] == pytest.approx(0.1 / 0.3, abs=1e-3)
    assert main[2] == pytest.approx(0), "the true class has its own axes"
    assert main[5] == pytest.approx(main[3]), "one scale for all images"
    words = comments(drawing)
    assert {"dog", "owl", "true class", "0.60", "1.00", "as given", "main"} <= set(words)
    assert words.count("cat") == 1, "class names stand below the last image alone"


def test_grey_images_and_the_same_bytes_for_the_same_labels():
    shown = [example(0, channels=1, as_given=[1, 0, 0])]
    drawing = label_chart(shown, CLASSES)
    assert drawing == label_chart(shown, CLASSES)
    assert b"<image" in drawing


def test_a_curve_a_row_over_the_measured_steps():
    table = TABLES["steps-figure"]
    first, second = table.rows[0].title, table.rows[1].title
    steps = {"pgd2-last": 0.6, "pgd20-last": 0.5, "pgd200-last": 0.45}
    rows = [
        {
            "title": title,
            "clean_accuracy": 0.9,
            "attacks": {name: {"accuracy": value, "images": 1000} for name, value in part.items()},
        }
        for title, part in ((second, {"pgd2-last": 0.6}), (first, steps), ("no row of it", steps))
    ]
    drawing = curve_figure(table, rows, Choices())
    words = comments(drawing)
    assert words.index(first) < words.index(second), "in the table's order"
    assert "no row of it" not in words and {"attack steps", "accuracy (%)", "200"} <= set(words)
    marks = dict.fromkeys(COLOURS, 0)
    for mark in ElementTree.fromstring(drawing).iter(f"{SVG}use"):
        for colour in COLOURS:
            marks[colour] += f"fill: {colour.lower()}" in mark.get("style", "")
    assert marks[COLOURS[0]] == 3 + 1 and marks[COLOURS[1]] == 1 + 1, "points, and the legend's"
    assert set(list(marks.values())[2:]) == {0}
    assert "AutoAttack" not in words, "not measured"


def test_a_quick_figure_has_the_steps_that_were_run():
    """Five at most, each once: not the same five at 10, 20, 50, 100 and 200."""
    table = TABLES["steps-figure"]
    shares = {"fgsm-last": 0.9, "pgd2-last": 0.8, "pgd5-last": 0.7}
    attacks = {name: {"accuracy": share, "images": 20} for name, share in shares.items()}
    rows = [{"title": table.rows[0].title, "clean_accuracy": 0.9, "attacks": attacks}]
    drawing = curve_figure(table, rows, Choices(quick=True))
    assert {"1", "2", "5"} <= set(comments(drawing)) and "10" not in comments(drawing)
    style = f"fill: {COLOURS[0].lower()}"
    marks = [
        mark
        for mark in ElementTree.fromstring(drawing).iter(f"{SVG}use")
        if style in mark.get("style", "")
    ]
    assert len(marks) == 3 + 1, "points, and the legend's"


def test_rows_of_one_title_are_told_apart():
    """By network and epochs, in the legend, and by their looks, however many there are."""
    table = TABLES["steps-figure"]
    attacks = {"pgd2-last": {"accuracy": 0.4}}
    lengths = {table.rows[0].title: (30, 100), table.rows[1].title: (100,)}
    rows = [
        {"title": title, "model": "small-cnn", "epochs": epochs, "clean_accuracy": 0.9}
        | {"attacks": attacks}
        for title, several in lengths.items()
        for epochs in several
    ]
    words = comments(curve_figure(table, rows, Choices()))
    first, second = lengths
    assert {f"{first} (small-cnn, 30 epochs)", f"{first} (small-cnn, 100 epochs)"} <= set(words)
    assert first not in words and second in words

    many = [rows[0] | {"epochs": epochs} for epochs in range(1, 13)]
    drawing = ElementTree.fromstring(curve_figure(table, many, Choices()))
    kinds = {path.get("id"): path.get("d") for path in drawing.iter(f"{SVG}path")}
    href = "{http://www.w3.org/1999/xlink}href"
    looks = {
        (kinds[mark.get(href)[1:]], mark.get("style"))
        for mark in drawing.iter(f"{SVG}use")
        if any(colour.lower() in mark.get("style", "") for colour in COLOURS)
    }
    assert len(looks) == 12


def test_what_autoattack_leaves_stands_apart_from_the_curve():
    table = TABLES["steps-figure"]
    attacks = {name: {"accuracy": 0.4} for name in ("pgd2-last", "pgd200-last")}
    row = {"title": table.rows[0].title, "clean_accuracy": 0.9, "other": {}}
    drawing = curve_figure(table, [row | {"attacks": attacks}], Choices())
    judged = curve_figure(
        table, [row | {"attacks": attacks | {"autoattack": {"accuracy": 0.1}}}], Choices()
    )
    assert "AutoAttack" in comments(judged) and "AutoAttack" not in comments(drawing)

    def marks(svg):
        places = ElementTree.fromstring(svg).iter(f"{SVG}use")
        style = f"fill: {COLOURS[0].lower()}"
        return [float(mark.get("y")) for mark in places if style in mark.get("style", "")]

    legend = 1
    assert len(marks(judged)) == len(marks(drawing)) + 1 == 2 + legend + 1
    assert max(marks(judged)) > max(marks(drawing)[:2]), "lower in the picture: y runs downwards"
