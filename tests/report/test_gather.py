"""Run folders that are whole, partial, damaged, older or newer: what is there, and what is said."""

import copy
import json
import random
import shutil

import numpy as np
import pytest
from run_folders import make_run

from bilateral.errors import UserError
from bilateral.report import reading
from bilateral.report.gather import gather
from bilateral.report.measures import attack_measures, headline
from bilateral.report.page import render


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("whole") / "digits-r-mc-la" / "seed0")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "digits-r-mc-la" / "seed0")


def gaps(folder):
    (files,) = gather([str(folder)])
    return {gap.file: gap for gap in files.gaps}


def test_a_whole_folder_misses_nothing(whole):
    (files,) = gather([str(whole)])
    assert files.gaps == []
    assert files.name == "digits-r-mc-la/seed0"
    assert len(files.epochs) == 30 and len(files.attacks) == 4
    head = headline(files)
    assert head.clean.accuracy == 0.985 and head.epsilon_text == "40/255"
    assert (head.pgd.attack, head.pgd.accuracy) == ("pgd20-cw", 0.6925)
    assert head.autoattack.accuracy == 0.6375 and head.autoattack.images == 400
    assert head.verdict == "holds"


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("evaluation.json", "bilateral evaluate"),
        ("diagnostics.json", "bilateral diagnose"),
        ("curves.json", "bilateral diagnose"),
        ("gallery.npz", "bilateral evaluate"),
        ("log.jsonl", "bilateral train"),
        ("config.json", ""),
    ],
)
def test_a_missing_file_is_named_with_its_command(folder, file, command):
    (folder / file).unlink()
    gap = gaps(folder)[file]
    assert "missing, so " in gap.problem and gap.command.startswith(command)
    assert not command or str(folder) in gap.command
    page = render(gather([str(folder)]))
    assert "Missing or damaged: 1" in page and f"<code>{file}</code> missing, so " in page


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe\x00", b"[" * 100_000])
@pytest.mark.parametrize("file", ["config.json", "evaluation.json", "diagnostics.json"])
def test_a_damaged_file_does_not_stop_the_page(folder, file, content):
    (folder / file).write_bytes(content)
    problem = gaps(folder)[file].problem
    assert problem.startswith("damaged (") and str(folder) not in problem
    assert "digits-r-mc-la/seed0" in render(gather([str(folder)]))


ODD = [None, 7, "text", [], [None], [[]], {}, {"a": {}}, [{}], 1e400, -1, True, [1, "a"], 1e300]


def places(value, path=()):
    """The paths to the values of a file, not too deep and not through all of a list."""
    if path:
        yield path
    if len(path) < 4:
        items = value.items() if isinstance(value, dict) else []
        items = enumerate(value[:2]) if isinstance(value, list) else items
        for step, inner in items:
            yield from places(inner, (*path, step))


@pytest.mark.parametrize("seed", range(10))
def test_odd_values_in_any_place_still_render(folder, seed):
    """A few places of every file hold what they should not; 330 seeds were tried by hand."""
    chosen = random.Random(seed)
    files = ["config.json", "evaluation.json", "diagnostics.json", "curves.json"]
    for file in [*files, "attacks/fgsm@40-255.json"]:
        top = json.loads((folder / file).read_text())
        for _ in range(3):
            *steps, last = chosen.choice(list(places(top)))
            spot = top
            for step in steps:
                spot = spot[step]
            spot[last] = copy.deepcopy(chosen.choice(ODD))
        (folder / file).write_text(json.dumps(top))
    lines = (folder / "log.jsonl").read_text().splitlines()
    odd = {key: chosen.choice(ODD) for key in [*json.loads(lines[4]), "guard"]}
    (folder / "log.jsonl").write_text("\n".join([*lines[:4], json.dumps(odd), *lines[5:]]))
    assert render(gather([str(folder)])).endswith("</html>")


def test_attacks_of_odd_values_are_left_out_alone(folder):
    file = json.loads((folder / "evaluation.json").read_text())
    attacks = file["entries"][0]["attacks"]
    attacks |= {"fgsm": None, "pgd20": {"accuracy": 1.5}, "pgd20-cw": {"accuracy": "0.5"}}
    (folder / "evaluation.json").write_text(json.dumps(file))
    (files,) = gather([str(folder)])
    found = {one.attack: one.source for one in attack_measures(files)}
    assert found.pop("autoattack") == "evaluate"
    assert set(found.values()) == {"flags alone"}  # their own files still have them


def test_lines_of_the_log_that_are_cut_off_are_counted(folder):
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"epoch": 31, "lo\n[3]\n')
    gap = gaps(folder)["log.jsonl"]
    assert gap.problem == "2 damaged lines left out"
    (files,) = gather([str(folder)])
    assert len(files.epochs) == 30


def test_a_training_that_was_cut_off_is_told_with_how_to_go_on(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    (folder / "log.jsonl").write_text("\n".join(lines[:12]) + "\n")
    gap = gaps(folder)["log.jsonl"]
    assert gap.problem == "12 of 30 epochs: training has not ended"
    where = f"--out {folder.parents[1]} --name digits-r-mc-la"
    assert gap.command == f"bilateral train {folder}/config.json {where}"
    stopped = json.loads(lines[11]) | {"guard": {"discarded": True, "event": "training ends"}}
    (folder / "log.jsonl").write_text("\n".join([*lines[:11], json.dumps(stopped)]))
    assert gaps(folder) == {}  # the guard ended it: nothing is missing
    moved = folder.rename(folder.parent / "copy")
    (moved / "log.jsonl").write_text("\n".join(lines[:12]) + "\n")
    assert gaps(moved)["log.jsonl"].command == ""


def test_a_model_from_outside_is_not_called_by_its_folder(folder):
    """`evaluate file.py:function --out` leaves no configuration: the folder is no target."""
    for file in ("config.json", "log.jsonl", "diagnostics.json", "curves.json"):
        (folder / file).unlink()
    found = gaps(folder)
    assert set(found) == {"diagnostics.json", "curves.json"}
    again = f"FILE.py:FUNCTION --data digits --out {folder}"
    assert found["curves.json"].command == f"bilateral diagnose {again}"
    page = render(gather([str(folder)]))
    assert f"bilateral evaluate {folder}" not in page and f"bilateral report {folder}" in page
    attacks = "fgsm,pgd20,pgd20-cw,autoattack --epsilon 40/255 --images 400 --data digits"
    assert f"evaluate FILE.py:FUNCTION --attacks {attacks} --out {folder}" in page


def test_without_a_configuration_the_head_says_nothing_of_it(folder):
    (folder / "config.json").unlink()
    page = render(gather([str(folder)]))
    assert '<p class="about"></p>' in page


def test_an_attack_without_flags_is_named(folder):
    (folder / "attacks" / "autoattack@40-255.json").unlink()
    gap = gaps(folder)["attacks/ (autoattack at 40/255)"]
    assert gap.command.endswith("--attacks autoattack --epsilon 40/255 --images 400")


def test_flags_that_no_evaluation_summed_up_are_shown(folder):
    (folder / "evaluation.json").unlink()
    (files,) = gather([str(folder)])
    (one,) = [one for one in attack_measures(files) if one.attack == "autoattack"]
    assert (one.accuracy, one.images, one.source) == (0.6375, 400, "flags alone")
    assert one.interval == pytest.approx((0.58927, 0.68306), abs=1e-4)
    assert headline(files).autoattack == one


def test_an_older_schema_without_intervals_and_the_new_fields(folder):
    file = json.loads((folder / "evaluation.json").read_text())
    entry = file["entries"][0]
    del file["schema"], entry["clean_interval"], entry["worst_case_interval"]
    del entry["clean_confusion"], entry["per_class"]
    for attack in entry["attacks"].values():
        for key in ("interval", "confusion", "members", "seconds", "forwards", "backwards"):
            del attack[key]
    (folder / "evaluation.json").write_text(json.dumps(file))
    diagnosis = json.loads((folder / "diagnostics.json").read_text())
    del diagnosis["reliability"], diagnosis["loss_surface"], diagnosis["histograms"]
    (folder / "diagnostics.json").write_text(json.dumps(diagnosis))
    files = gather([str(folder)])
    assert headline(files[0]).pgd.interval is not None  # from accuracy and images
    page = render(files)
    for said in ("Confusion under attack: not measured", "Accuracy by class: not measured"):
        assert said in page
    assert "Reliability of confidence: not measured" in page and "69.2" in page


def test_a_newer_schema_is_told_and_shown(folder):
    file = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").write_text(json.dumps({**file, "schema": 7, "news": [1]}))
    assert "newer version (schema 7)" in gaps(folder)["evaluation.json"].problem
    assert headline(gather([str(folder)])[0]).autoattack.accuracy == 0.6375


def test_diagnostics_of_other_weights_are_left_out(folder):
    diagnosis = json.loads((folder / "diagnostics.json").read_text())
    (folder / "diagnostics.json").write_text(json.dumps(diagnosis | {"weights_digest": "x"}))
    assert "other weights" in gaps(folder)["diagnostics.json"].problem
    (files,) = gather([str(folder)])
    assert headline(files).verdict is None and not files.curves


def test_diagnostics_of_other_code_are_left_out(folder):
    """The same weights behind another forward are another model; older diagnoses do not say."""
    path = folder / "evaluation.json"
    file = json.loads(path.read_text())
    entries = [entry | {"code_digest": "new"} for entry in file["entries"]]
    path.write_text(json.dumps(file | {"entries": entries}))
    diagnosis = json.loads((folder / "diagnostics.json").read_text())
    for code, told in (("old", True), ("new", False), ("", False)):
        (folder / "diagnostics.json").write_text(json.dumps(diagnosis | {"code_digest": code}))
        (files,) = gather([str(folder)])
        problems = [gap.problem for gap in files.gaps if gap.file == "diagnostics.json"]
        assert any("other code of the model" in problem for problem in problems) == told
        assert (headline(files).verdict is None) == told


def test_pictures_of_other_code_are_left_out(folder):
    """Older galleries do not say of which code they are."""
    path = folder / "evaluation.json"
    file = json.loads(path.read_text())
    entries = [entry | {"code_digest": "new"} for entry in file["entries"]]
    path.write_text(json.dumps(file | {"entries": entries}))
    with np.load(folder / "gallery.npz") as stored:
        arrays = dict(stored)
    for code, told in ({"code_digest": "old"}, True), ({"code_digest": "new"}, False), ({}, False):
        np.savez(folder / "gallery.npz", **arrays, **code)
        (files,) = gather([str(folder)])
        problems = [gap.problem for gap in files.gaps if gap.file == "gallery.npz"]
        assert any("other code of the model" in problem for problem in problems) == told
        assert (not files.gallery) == told


def test_results_of_different_weights_are_never_under_one_name(folder):
    """The model was trained again: what the older one was worth is not on the page."""
    path, flags = folder / "evaluation.json", folder / "attacks" / "square@40-255.json"
    file = json.loads(path.read_text())
    (last,) = file["entries"]
    older = last | {"weights_digest": "older", "epsilon_text": "16/255", "clean_accuracy": 0.123}
    path.write_text(json.dumps(file | {"entries": [older, last]}))
    old_flags = json.loads(next((folder / "attacks").glob("*.json")).read_text())
    old_flags |= {"weights_digest": "older", "attack": "square", "accuracy": 0.0321}
    flags.write_text(json.dumps(old_flags))
    with np.load(folder / "gallery.npz") as stored:
        arrays = {**stored, "weights_digest": np.array("older")}
    np.savez(folder / "gallery.npz", **arrays)
    (files,) = gather([str(folder)])
    assert [one["clean_accuracy"] for one in files.entries] == [last["clean_accuracy"]]
    assert "square" not in {one["attack"] for one in files.attacks} and not files.gallery
    left_out = [gap.file for gap in files.gaps if "other weights" in gap.problem]
    assert left_out == [
        f"evaluation.json (digits at 16/255, {last['images']} images)",
        "attacks/ (square at 40/255)",
        "gallery.npz",
    ]
    assert "16/255" not in {one.epsilon_text for one in attack_measures(files)}
    assert "attacks/ (square at 40/255)" in render([files])
    path.write_text(json.dumps(file | {"entries": []}))  # then the diagnosis says whose page it is
    (files,) = gather([str(folder)])
    assert files.attacks and "square" not in {one["attack"] for one in files.attacks}


def test_a_gallery_of_which_one_array_is_damaged(folder):
    with np.load(folder / "gallery.npz") as stored:
        arrays = dict(stored)
    np.savez(folder / "gallery.npz", **arrays)  # not compressed: a byte can be flipped in place
    data = bytearray((folder / "gallery.npz").read_bytes())
    place = data.index(b"pgd20@40-255/adversarial.npy") + 400
    data[place] ^= 0xFF
    (folder / "gallery.npz").write_bytes(data)
    (files,) = gather([str(folder)])
    (gap,) = files.gaps
    assert gap.problem.startswith("damaged in pgd20@40-255/adversarial")
    assert "fgsm@40-255/adversarial" in files.gallery
    (folder / "gallery.npz").write_bytes(bytes(data[:1000]))
    assert "damaged" in gaps(folder)["gallery.npz"].problem


def test_what_is_no_run_folder_is_refused(tmp_path, whole):
    with pytest.raises(UserError, match="no run folder at"):
        gather([str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.json, "):
        gather([str(tmp_path)])
    with pytest.raises(UserError, match=r"did you mean .*seed0"):
        gather([str(whole.parent)])


def test_names_are_told_apart(whole, tmp_path):
    other = shutil.copytree(whole, tmp_path / "digits-r-mc-la" / "seed0")
    third = shutil.copytree(whole, tmp_path / "lone")
    names = [files.name for files in gather([str(whole), str(other), str(third)])]
    assert names == [str(whole), str(other), "lone"]


def test_the_budget_of_the_headline(folder):
    """AutoAttack's budget leads, and figures of other budgets and data stay out of it."""
    file = json.loads((folder / "evaluation.json").read_text())
    (first,) = file["entries"]
    del first["attacks"]["autoattack"]
    (folder / "attacks" / "autoattack@40-255.json").unlink()
    second = json.loads(json.dumps(first)) | {"epsilon": 8 / 255, "epsilon_text": "8/255"}
    second["attacks"] = {"autoattack": first["attacks"]["fgsm"] | {"accuracy": 0.5, "images": 100}}
    other = json.loads(json.dumps(first)) | {"data": "svhn"}
    other["attacks"]["pgd20"]["accuracy"] = 0.01
    file["entries"] = [first, other, second]
    (folder / "evaluation.json").write_text(json.dumps(file))
    head = headline(gather([str(folder)])[0])
    assert head.epsilon_text == "8/255" and head.autoattack.accuracy == 0.5 and head.pgd is None
    file["entries"] = [first, other]
    (folder / "evaluation.json").write_text(json.dumps(file))
    head = headline(gather([str(folder)])[0])
    assert head.epsilon_text == "40/255" and head.pgd.accuracy == 0.6925
    assert head.autoattack is None
    assert (head.strongest.attack, head.strongest.source) == ("apgd", "diagnose")
    assert (head.strongest.accuracy, head.strongest.images) == (0.645, 200)


def test_weaker_attacks_on_more_images_do_not_hide_autoattack(folder):
    """The paper's protocol on all images, AutoAttack on some: the worst case is the latter's."""
    path = folder / "evaluation.json"
    file = json.loads(path.read_text())
    (strong,) = file["entries"]
    weak = json.loads(json.dumps(strong)) | {"images": 10_000, "worst_case_accuracy": 0.72}
    weak["attacks"] = {"pgd20-last": strong["attacks"]["pgd20"] | {"images": 10_000}}
    other = json.loads(json.dumps(strong)) | {"data": "svhn", "images": 20_000}
    for entries in ([weak, strong, other], [strong, weak]):
        path.write_text(json.dumps(file | {"entries": entries}))
        (files,) = gather([str(folder)])
        head = headline(files)
        assert (head.worst.accuracy, head.worst.images) == (0.6375, 400)
        assert (head.pgd.attack, head.pgd.images) == ("pgd20-cw", 400)
        assert head.clean.images == 10_000 and head.entry["data"] == "digits"
        assert "Under autoattack at 40/255: predicted class" in render([files])
    weak["attacks"] |= {"fgsm": strong["attacks"]["fgsm"]}
    path.write_text(json.dumps(file | {"entries": [weak]}))  # AutoAttack by its own file alone
    head = headline(gather([str(folder)])[0])
    assert head.autoattack.accuracy == 0.6375 and head.worst is None


def test_values_of_the_wrong_kind_count_as_absent():
    assert reading.number(True) is None and reading.number("1") is None
    assert reading.number(float("nan")) is None and reading.number(10**400) is None
    assert reading.number(1e300) is None
    assert reading.share(1.01) is None and reading.share(0) == 0.0
    assert reading.count(3.5) is None and reading.count(-1) is None and reading.count(4.0) == 4
    assert reading.matrix([[1, 2], [3]]) == [] and reading.square([[1, 2]]) == []
    assert reading.all_numbers([1, None]) == [] and reading.interval([0.1, "b"]) is None
    assert reading.points([{"x": 2, "y": 1}, {"x": 1, "y": 0}, {"x": 3}], "x", "y") == [
        (1.0, 0.0),
        (2.0, 1.0),
    ]
