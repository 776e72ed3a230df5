"""The page: its numbers are the files', names come out as text, and it stays small and quick."""

import html
import itertools
import json
import re
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from run_folders import ACCURACIES, HOSTILE, diagnosis, make_run, transfer, write

from bilateral.errors import UserError
from bilateral.paper.recipes import recipe_named
from bilateral.report.charts import Line, draw_line, draw_svg
from bilateral.report.gather import gather
from bilateral.report.measures import headline
from bilateral.report.page import render
from bilateral.report.sections import commands, differing
from bilateral.report.transfer import read_transfer
from bilateral.tables import percent

VOID = {"meta", "link", "img", "br", "input"}


class Reader(HTMLParser):
    """A page as elements: it must nest, and only its own scripts may run."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts, self.ids = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> does not close what is open"

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids)), "ids are unique"
    return reader


def embedded(page):
    (found,) = re.findall(
        r'<script type="application/json" id="examples">(.*?)</script>', page, re.S
    )
    return json.loads(found)


def table(page, label):
    """The rows of a table by the label of its box, as lists of texts."""
    box = re.search(rf'aria-label="{re.escape(label)}"><table.*?</table>', page, re.S)[0]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", box, re.S)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in rows]
    return [[html.unescape(re.sub(r"<[^>]+>", " ", cell)).strip() for cell in row] for row in cells]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("page") / "digits-r-mc-la" / "seed0")


@pytest.fixture(scope="module")
def page(run):
    return render(gather([str(run)]))


def test_it_is_whole_and_alone(page):
    reader = read(page)
    assert page.startswith("<!DOCTYPE html>")
    for tag, attributes in reader.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            where = attributes.get(name, "#")
            assert where.startswith(("#", "data:")), f"<{tag} {name}={where}>"
    assert not re.search(r"@import|url\((?!#)", page)
    links = set(re.findall(r"https?://[^\"' )]+", page))
    assert links <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_headings_form_an_outline_and_figures_are_told_in_words(page, run, tmp_path):
    other = make_run(tmp_path / "other" / "seed0", epochs=2)
    for one in (page, render(gather([str(run), str(other)]))):
        elements = read(one).elements
        levels = [int(tag[1]) for tag, _ in elements if re.fullmatch(r"h\d", tag)]
        assert levels[0] == 1
        for above, level in itertools.pairwise(levels):
            assert level <= above + 1, "no level is left out"
        drawings = [given for tag, given in elements if given.get("class") == "drawing"]
        assert len(drawings) >= 8
        for given in drawings:
            assert given["role"] == "img" and len(given["aria-label"]) > 30
        for tag, given in elements:
            assert tag != "svg" or given["aria-hidden"] == "true"


def test_the_headline_is_the_evaluation(page, run):
    entry = json.loads((run / "evaluation.json").read_text())["entries"][0]
    text = read(page).text
    assert f"Clean {percent(entry['clean_accuracy'])} % 95 % interval" in text
    for title, name in (("Under PGD", "pgd20-cw"), ("Under AutoAttack", "autoattack")):
        attack = entry["attacks"][name]
        low, high = (percent(end) for end in attack["interval"])
        said = f"{title} {percent(attack['accuracy'])} % 95 % interval {low} to {high} "
        assert said + f"{name} at 40/255, 400 images, digits" in text
    assert "robust accuracy" not in text.lower()  # a figure is named by its attack


def test_what_is_not_the_recipes_stands_at_the_head(tmp_path):
    """An undefended run of `digits-r-mc-la --method undefended` must not pass for the method."""
    folder = make_run(tmp_path / "run" / "seed0")
    config = json.loads((folder / "config.json").read_text())
    config["run"] = recipe_named("digits-r-mc-la").model_dump(mode="json")
    config["run"]["epochs"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    assert "differs from that recipe" not in render(gather([str(folder)])), "the head says epochs"
    config["run"] |= {"method": "undefended"}
    config["run"]["adversary"]["epsilon"] = 4 / 255
    (folder / "config.json").write_text(json.dumps(config))
    head = render(gather([str(folder)])).partition("</header>")[0]
    said = re.sub(r"<[^>]+>", "", head.partition("differs from that recipe in: ")[2])
    assert said.split() == ["method", "undefended", "adversary.epsilon", "4/255"]


def test_the_attack_table_is_the_evaluation(page):
    rows = table(page, "Attacks")[1:]
    assert [row[0] for row in rows] == list(ACCURACIES)
    for row, accuracy in zip(rows, ACCURACIES.values(), strict=True):
        assert row[1:3] == ["40/255", percent(accuracy)]
        assert row[4:] == ["400", "12.5", "21.0", "20.0"]


def test_classes_and_confusion_are_the_evaluation(page):
    assert table(page, "Accuracy by class")[4] == ["3", "40", "97.5", "30.0"]
    rows = table(page, "Confusion, Under autoattack at 40/255")
    assert rows[0] == ["true \\ predicted", *map(str, range(10))]
    assert rows[3] == ["2", "·", "·", "36", "4", *["·"] * 6]
    assert table(page, "Confusion, Clean images")[1][1] == "40"


def test_curves_checks_and_gradients_are_the_diagnosis(page):
    rows = table(page, "Accuracy against the budget, numbers")
    assert [row[:2] for row in rows[1:]] == [
        ["0", "98.5"],
        ["20/255", "91.2"],
        ["40/255", "73.8"],
        ["80/255", "6.2"],
        ["255/255", "0.0"],
    ]
    assert rows[0][1:3] == ["PGD", "autoattack, from evaluate"] and rows[3][2] == "63.7"
    assert "Larger budgets are listed under Numbers." in page
    assert table(page, "Accuracy against attack steps, numbers")[-1] == ["50", "73.2"]
    assert table(page, "Checks")[1][:4] == ["zero-gradients", "passed", "0.0125", "0.05"]
    assert table(page, "Gradient magnitude")[3] == ["wrong", "10", "1", "2.5", "3"]
    assert "Expected calibration error: clean 3.8 %; pgd20 3.8 %" in page


@pytest.mark.parametrize(("verdict", "sign"), [("holds", "●"), ("suspect", "▲"), ("masked", "■")])
def test_the_verdict_is_a_word_a_sign_and_its_reasons(tmp_path, verdict, sign):
    folder = make_run(tmp_path / "run", verdict=verdict, epochs=2)
    text = read(render(gather([str(folder)]))).text
    assert f"Verdict on the robustness figure {sign} {verdict}" in text
    assert ("pgd-apgd-gap 0.12 (limit 0.06): overstated" in text) == (verdict != "holds")


def test_a_verdict_on_few_images_is_no_acquittal(tmp_path):
    """As `bilateral diagnose` says, which the page must not outdo."""
    folder = make_run(tmp_path / "run", epochs=2)
    assert "the figure can be trusted" in read(render(gather([str(folder)]))).text
    found = diagnosis("holds") | {"images": 50}
    found["readings"][1] |= {"unsure": True}
    write(folder / "diagnostics.json", found)
    text = read(render(gather([str(folder)]))).text
    assert "figure can be trusted" not in text
    assert "No check was raised, but: 50 images are too few to clear it" in text
    assert "pgd-apgd-gap is past its limit, but not significantly on so few images" in text
    write(folder / "diagnostics.json", diagnosis("holds") | {"epsilon_text": "1/255"})
    text = read(render(gather([str(folder)]))).text
    assert "No check was raised, but: the checks were run at 1/255, not at" in text


def test_without_autoattack_the_page_says_so(tmp_path):
    folder = make_run(tmp_path / "run", accuracies={"pgd20": 0.7375}, epochs=2)
    text = read(render(gather([str(folder)]))).text
    assert "Under apgd (AutoAttack not measured) 64.5 %" in text
    assert "apgd at 40/255, 200 images, from diagnose" in text
    (folder / "diagnostics.json").unlink()
    text = read(render(gather([str(folder)]))).text
    assert "Under AutoAttack not measured" in text and "--attacks autoattack" in text
    assert "○ not diagnosed" in text


def test_pictures_are_those_of_the_gallery(page, run):
    data = embedded(page)
    with np.load(run / "gallery.npz") as stored:
        arrays = dict(stored)
    assert len(data["examples"]) == 12 and data["left_out"] == 0
    first = data["examples"][1]
    assert (first["attack"], first["budget"], first["number"]) == ("fgsm", "40/255", 7)
    assert (first["label"], first["before"], first["after"]) == (1, [1, 0.9], [2, 0.7])
    assert first["bars"][1] == [1, 1, 0.5, 0.9, 0.2]
    shown = pixels_of(data["pictures"][first["adversarial"]])
    expected = np.rint(255 * arrays["fgsm@40-255/adversarial"][1, 0].astype(float))
    assert np.array_equal(shown, expected)
    change = arrays["fgsm@40-255/adversarial"].astype(float) - arrays["fgsm@40-255/clean"]
    factor = 0.5 / np.abs(change).max()
    assert first["factor"] == f"{factor:.3g}"
    magnified = np.rint(255 * np.clip(0.5 + factor * change[1, 0], 0, 1))
    assert np.abs(pixels_of(data["pictures"][first["change"]]) - magnified).max() <= 1
    assert first["clean"] == data["examples"][7]["clean"]  # both attacks share the clean picture


def test_a_budget_with_an_exponent_keeps_it(tmp_path):
    run = make_run(tmp_path / "run", epochs=2)
    with np.load(run / "gallery.npz") as stored:
        tiny = {name.replace("@40-255", "@5e-05"): array for name, array in stored.items()}
    np.savez(run / "gallery.npz", **tiny)
    examples = embedded(render(gather([str(run)])))["examples"]
    assert {example["budget"] for example in examples} == {"5e-05"}


def pixels_of(uri):
    import base64
    import io

    from PIL import Image

    data = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(data))).astype(float)


def test_hostile_names_come_out_as_text(tmp_path):
    names = list(HOSTILE.values())
    folder = make_run(tmp_path / "a <b>&\"'$x$ 😀" / "seed0", classes=names, verdict="suspect")
    config = json.loads((folder / "config.json").read_text())
    config["run"]["recipe"] = HOSTILE["markup"]
    config["run"]["notes"] = HOSTILE["ends"]
    config["versions"][HOSTILE["image"]] = HOSTILE["braces"]
    write(folder / "config.json", config)
    found = diagnosis("suspect")
    found["reasons"] = names
    found["histograms"][0]["name"] = f"gradient {HOSTILE['mathematics']}"
    found["reliability"][0]["name"] = HOSTILE["markup"]
    write(folder / "diagnostics.json", found)
    evaluation = json.loads((folder / "evaluation.json").read_text())
    attacks = evaluation["entries"][0]["attacks"]
    attacks[HOSTILE["quotes"]] = attacks.pop("fgsm")
    evaluation["entries"][0]["data"] = HOSTILE["image"]
    write(folder / "evaluation.json", evaluation)
    matrix = read_transfer(str(transfer(tmp_path / "transfer.json", names)))
    page = render(gather([str(folder), str(folder.parent / "seed0")]), matrix)
    reader = read(page)
    scripts = [attributes for tag, attributes in reader.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "examples"}, {}]
    assert not [one for tag, one in reader.elements if tag == "img" and one.get("src")]
    for _, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith(("on", "autofocus", '"', "'"))]
    for name in names:
        assert " ".join(name.split()) in reader.text, name
    assert embedded(page)["classes"][0] == names
    assert "\u2028" not in re.search(r'id="examples">(.*?)</script>', page, re.S)[1]


def test_drawings_hold_no_names_and_fixed_text_is_escaped():
    def paint(axes):
        draw_line(axes, Line("<b>$name$</b>", [(0, 1), (1, 2)], 9))
        axes.set_xlabel('less < more & "so"')

    svg = draw_svg(paint, "salt")
    assert "name" not in svg and "less &lt; more &amp;" in svg
    assert "var(--series-2)" in svg and "currentColor" in svg and "var(--rule)" in svg
    assert not re.search(r"#0a0b|#010203|#040506|<\?xml|<!DOCTYPE|<metadata", svg)
    assert svg == draw_svg(paint, "salt"), "the same drawing is the same text"
    ids = set(re.findall(r'id="(.*?)"', svg))
    assert ids and not ids & set(re.findall(r'id="(.*?)"', draw_svg(paint, "other")))


def test_long_lines_keep_their_marks():
    """A legend shows them, and without marks a line is told from others by its colour alone."""

    def marks(points):
        line = Line("a", [(place, place % 7) for place in range(points)], 3)
        return draw_svg(lambda axes: draw_line(axes, line), "salt").count("<use") - ticks

    ticks = draw_svg(lambda axes: axes.plot(range(2)), "salt").count("<use")
    assert marks(40) > 35 and 12 <= marks(100) <= 25 and 12 <= marks(1000) <= 25


def test_legends_show_what_is_drawn(tmp_path):
    """Histograms differ by dashes, which their legend has too, and have no marks."""
    found = diagnosis("holds")
    (first, other) = found["histograms"]
    found["histograms"] = [first | {"name": f"gradient, {kind}"} for kind in ("correct", "wrong")]
    folder = make_run(tmp_path / "run", epochs=2)
    write(folder / "diagnostics.json", found | {"histograms": [*found["histograms"], other]})
    page = render(gather([str(folder)]))
    swatches = re.findall(r"<svg class=\"swatch series-(\d)\".*?>(.*?)</svg><bdi>(.*?)</bdi>", page)
    legend = {name: (look, drawn) for look, drawn, name in swatches}
    assert legend["gradient, correct"] == ("0", '<path d="M1 5H29"/>')
    assert legend["gradient, wrong"] == ("1", '<path d="M1 5H29" stroke-dasharray="5 2"/>')
    assert legend["clean"][1].startswith('<path d="M1 5H29"/><circle')


@pytest.mark.parametrize(
    ("held_out", "where"), [(500, ", on held-out images"), (0, ", on fixed training images")]
)
def test_held_out_accuracy_is_called_so(tmp_path, held_out, where):
    folder = make_run(tmp_path / "held" / "seed0", epochs=5)
    config = json.loads((folder / "config.json").read_text())
    config["run"]["data"]["held_out"] = held_out
    write(folder / "config.json", config)
    other = make_run(tmp_path / "other" / "seed0", epochs=5)
    for name in ("clean", "FGSM", "PGD-10"):
        assert f"<bdi>{name}{where}</bdi>" in render(gather([str(folder)]))
    both = render(gather([str(folder), str(other)]))
    said = "On images held out of training in held/seed0; on training images in others."
    assert (said in both) == bool(held_out)
    assert ("On fixed training images: no run held any out." in both) != bool(held_out)


def test_the_users_matplotlib_settings_neither_matter_nor_change():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        svg = draw_svg(lambda axes: axes.plot([0, 1]), "salt")
        assert matplotlib.rcParams["text.usetex"]
    assert dict(matplotlib.rcParams) == before and "#ff0000" not in svg


def test_several_runs_are_compared(tmp_path, run):
    weak = make_run(tmp_path / "weak" / "seed0", accuracies={"pgd20": 0.0125}, verdict="masked")
    config = json.loads((weak / "config.json").read_text())
    config["run"]["epochs"] = 7
    write(weak / "config.json", config)
    matrix = read_transfer(str(transfer(tmp_path / "transfer.json", ["one", "two"])))
    runs = gather([str(run), str(weak)])
    page = render(runs, matrix)
    rows = [[" ".join(cell.split()) for cell in row] for row in table(page, "Comparison of runs")]
    assert rows[1][0] == "digits-r-mc-la/seed0" and rows[2][:3] == [
        "weak/seed0",
        "■ masked",
        "40/255",
    ]
    assert rows[1][4:7] == ["69.2 64.6 to 73.6 n = 400", "pgd20-cw", "63.7 58.9 to 68.3 n = 400"]
    assert rows[2][6] == "–" and rows[2][8] == "7"
    assert differing(runs) == [("epochs", ["30", "7"])]
    for title in ("Clean against robust", "Accuracy against the budget", "Training loss"):
        assert f'<p class="title">{title}</p>' in page
    assert table(page, "Clean against robust, numbers")[1:] == [
        ["digits-r-mc-la/seed0", "98.5", "63.7", "autoattack", "40/255", "400", "digits"],
        ["weak/seed0", "98.5", "1.2", "worst case", "40/255", "400", "digits"],
    ]
    assert "folder:" not in page and "Not all are on the same data" not in page
    assert "no run held any out. At 40/255." in page
    heat = table(page, "Transfer by fgsm")
    assert heat[1:] == [
        ["clean images", "98.5", "98.5"],
        ["one", "12.5", "87.5"],
        ["two", "87.5", "12.5"],
    ]


def moved(folder, file, **fields):
    """A file of a run, or the entry in it, as if it were of something else."""
    said = json.loads((folder / file).read_text())
    for one in said.get("entries", [said]):
        one.update(fields)
    write(folder / file, said)


def test_runs_on_other_data_or_at_other_budgets_are_told_apart(tmp_path):
    """Side by side a mark, a line or a row says nothing of what it was measured on."""
    run, other = (make_run(tmp_path / name / "seed0", epochs=5) for name in ("one", "other"))
    moved(other, "evaluation.json", data="folder:mine")
    config = json.loads((other / "config.json").read_text())
    config["run"]["adversary"]["epsilon"] = 8 / 255
    write(other / "config.json", config)
    page = render(gather([str(run), str(other)]))
    rows = [[" ".join(cell.split()) for cell in row] for row in table(page, "Comparison of runs")]
    assert [row[2] for row in rows[1:]] == ["40/255 digits", "40/255 folder:mine"]
    assert "faced the same attacks, on the same data." in page
    numbers = table(page, "Clean against robust, numbers")
    assert [row[-1] for row in numbers] == ["data", "digits", "folder:mine"]
    assert "Not all are on the same data or at the same budget." in page
    assert "At 40/255 in one/seed0; at 8/255 in other/seed0." in page
    assert "Attacked at 8/255." in render(gather([str(other)]))


def test_figures_of_one_folder_on_two_data_sets_are_told_apart(tmp_path):
    """As `evaluate --out` leaves them; a diagnosis on one is no verdict on the other."""
    run = make_run(tmp_path / "run", epochs=5)
    (files,) = gather([str(run)])
    second = [one | {"data": "folder:mine", "data_digest": "m"} for one in files.entries]
    first = [one | {"data_digest": "d"} for one in files.entries]
    write(run / "evaluation.json", {"schema": 1, "entries": first + second})
    for file in (run / "attacks").iterdir():
        file.unlink()
    with np.load(run / "gallery.npz") as stored:
        np.savez(run / "gallery.npz", **{**stored, "data_digest": np.array("m")})
    moved(run, "diagnostics.json", data="folder:mine", accuracies={"apgd": 0.9})
    (files,) = gather([str(run)])
    page = render([files])
    head, *rows = table(page, "Attacks")
    assert head[-1] == "data"
    assert [row[-1] for row in rows] == ["digits"] * 4 + ["folder:mine"] * 4
    assert "the checks were run on folder:mine, not on digits" in page
    assert headline(files).strongest is None
    assert embedded(page)["data"] == ["folder:mine"]
    assert "on 200 images of folder:mine." in page
    assert any("diagnose" in one and "--data folder:mine" in one for one in commands(files))


def test_curves_are_of_the_diagnosis_beside_them(tmp_path):
    """`curves.json` does not say of which weights it is, and an interrupted one may be older."""
    run = make_run(tmp_path / "run", epochs=5)
    assert "Accuracy against the budget" in render(gather([str(run)]))
    moved(run, "diagnostics.json", curves={"epsilon": [{"epsilon": 0.0, "accuracy": 0.456}]})
    page = render(gather([str(run)]))
    assert ">45.6<" in page and ">98.5<" not in page.split("Accuracy against the budget")[1]
    assert "Accuracy against the budget" in render(gather([str(run)]))
    (run / "diagnostics.json").unlink()
    assert "Accuracy against the budget" not in render(gather([str(run)]))


def test_a_matrix_of_weights_that_are_gone_is_refused(tmp_path):
    run = make_run(tmp_path / "run", epochs=5)
    file = transfer(tmp_path / "transfer.json", [str(run), "elsewhere"])
    runs = gather([str(run)])
    for digest in (runs[0].weights, None):
        moved(tmp_path, file.name, data="digits", weights_digests={str(run): digest})
        read_transfer(str(file)).refuse_others(runs)
    assert "360 images of <bdi>digits</bdi>." in render(runs, read_transfer(str(file)))
    moved(tmp_path, file.name, weights_digests={str(run): "older", "elsewhere": "x"})
    with pytest.raises(
        UserError, match=r"was measured on other weights of .*; run bilateral transfer again"
    ):
        read_transfer(str(file)).refuse_others(runs)


def test_a_transfer_file_of_the_user_is_checked(tmp_path):
    with pytest.raises(UserError, match=r"no none\.json there"):
        read_transfer(str(tmp_path / "none.json"))
    write(tmp_path / "transfer.json", {"attacks": {"fgsm": []}})
    with pytest.raises(UserError, match="holds no transfer matrix"):
        read_transfer(str(tmp_path))


def test_many_classes_are_told_by_the_largest_confusions(tmp_path):
    names = [f"class {number}" for number in range(150)]
    folder = make_run(tmp_path / "run", classes=names, epochs=2)
    page = render(gather([str(folder)]))
    rows = table(page, "Largest confusions, Under autoattack at 40/255")
    assert len(rows) == 21 and rows[1] == ["class 0", "class 1", "4", "200.0"]
    assert len(table(page, "Accuracy by class")) == 101 and "The 100 worst classes." in page
    assert all(len(example["bars"]) == 10 for example in embedded(page)["examples"])
    assert all(any(bar[1] for bar in example["bars"]) for example in embedded(page)["examples"])


def test_a_hundred_classes_are_all_of_them(tmp_path):
    folder = make_run(tmp_path / "run", classes=[f"class {number}" for number in range(100)])
    page = render(gather([str(folder)]))
    assert len(table(page, "Accuracy by class")) == 101 and "worst classes" not in page


def test_commands_repeat_what_was_done(run):
    (files,) = gather([str(run)])
    assert commands(files) == [
        f"bilateral train {run}/config.json --out again",
        f"bilateral evaluate {run} --attacks fgsm,pgd20,pgd20-cw,autoattack --epsilon 40/255 "
        "--images 400",
        f"bilateral diagnose {run} --images 200 --epsilon 40/255",
        f"bilateral report {run}",
    ]


def test_guard_readings_and_events_are_drawn(tmp_path):
    folder = make_run(tmp_path / "run", epochs=2)
    lines = [
        {"epoch": 1, "loss": 2.0, "guard": {"fgsm": 0.5, "pgd10": 0.25, "event": None}},
        {"epoch": 2, "loss": 1.0, "guard": {"fgsm": 0.75, "event": "FGSM rose <above> PGD"}},
        {"epoch": 3, "loss": 1.0, "guard": {"alignment": 0.5}},
    ]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = render(gather([str(folder)]))
    ends = "fgsm: from 0.5 to 0.75 in epoch 2; pgd10: from 0.25 to 0.25 in epoch 1; "
    assert f"Guard readings by epoch. {ends}alignment: from 0.5 to 0.5" in page
    assert "epoch 2: FGSM rose &lt;above&gt; PGD" in page
    assert "Alignment: cosine of the gradients" in page


def test_twenty_runs_are_quick_and_small(tmp_path):
    folders = []
    for number in range(20):
        where = tmp_path / f"run-{number}" / "seed0"
        folders.append(str(make_run(where, shape=(3, 32, 32), count=24, seed=number)))
    started = time.monotonic()
    page = render(gather(folders))
    seconds = time.monotonic() - started
    assert seconds < 5
    assert 1_000_000 < len(page.encode()) < 10_000_000
    assert len(table(page, "Comparison of runs")) == 21
    data = embedded(page)
    assert {example["run"] for example in data["examples"]} == set(range(20))
    assert len(data["examples"]) + data["left_out"] == 20 * 2 * 24
    assert f"{data['left_out']} more are left out" in page


def test_photographs_are_reduced(tmp_path):
    folder = make_run(tmp_path / "run", shape=(3, 224, 200), count=24, epochs=2)
    page = render(gather([str(folder)]))
    assert len(page.encode()) < 10_000_000
    data = embedded(page)
    assert pixels_of(data["pictures"][0]).shape == (96, 86, 3)
    assert len(data["examples"]) > 20
    change = pixels_of(data["pictures"][data["examples"][0]["change"]])
    assert np.abs(change - 127.5).mean() > 90  # not averaged away


def test_torch_is_not_imported(run, tmp_path):
    code = (
        "import sys\nfrom bilateral.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "sys.exit(code or ('torch' in sys.modules) or ('matplotlib.pyplot' in sys.modules))"
    )
    words = ["report", str(run), "--out", str(tmp_path / "page.html")]
    done = subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").read_text().endswith("</html>")
