"""McNemar's test against known values, and runs compared through the command."""

import json
import math
import shutil
import subprocess
import sys

import pytest

from bilateral.cli import main
from bilateral.errors import UserError
from bilateral.evaluation.comparison import compare, mcnemar, paired_test
from bilateral.paper.recipes import recipe_named
from bilateral.results import AttackFile, MemberFlags
from bilateral.runs import RunFolder, write_json
from bilateral.tables import lettered, narrow


def leave_flags(
    folder,
    robust,
    first=0,
    data="digits",
    digest="",
    attack="pgd20",
    budget="8/255",
    weights="",
    code="",
):
    numbers = list(range(first, first + len(robust)))
    file = AttackFile(
        schema=1,
        attack=attack,
        settings={attack: {}},
        epsilon=8 / 255,
        epsilon_text=budget,
        data=data,
        data_digest=digest,
        search="float32",
        weights_digest=weights,
        code_digest=code,
        versions={},
        members={attack: MemberFlags(images=numbers, robust=robust)},
    )
    file.compile()
    write_json(RunFolder(folder).attack(attack, budget), file.model_dump(by_alias=True))


@pytest.mark.parametrize(
    ("only_first", "only_second", "p_value"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 10, 2 / 1024), (6, 16, 0.05247879), (15, 5, 0.04138947)],
)
def test_mcnemar_known_values(only_first, only_second, p_value):
    """By hand from the binomial distribution: 2 P(X <= min) at one half."""
    assert mcnemar(only_first, only_second) == pytest.approx(p_value, rel=1e-6)


def test_large_counts_agree_with_the_exact_test():
    for fewer in (400, 470, 495, 500):
        exact = min(1.0, 2 * sum(math.comb(1000, count) for count in range(fewer + 1)) / 2**1000)
        assert mcnemar(1000 - fewer, fewer) == pytest.approx(exact, rel=0.01, abs=1e-9)
    assert mcnemar(3000, 1000) < 1e-100


def test_only_discordant_images_count():
    test = paired_test({1: True, 2: True, 3: False, 9: True}, {1: True, 2: False, 3: True})
    assert (test.images, test.only_first, test.only_second) == (3, 1, 1)


def test_runs_are_compared_on_shared_images(tmp_path):
    leave_flags(tmp_path / "a", [True] * 30 + [False] * 10)
    leave_flags(tmp_path / "b", [True] * 10 + [False] * 20, first=10)
    result = compare([str(tmp_path / "a"), str(tmp_path / "b")], "pgd20", "8/255")
    assert result.images == 30
    assert [line.accuracy for line in result.runs] == pytest.approx([20 / 30, 10 / 30])
    assert result.runs[1].against_first.only_first == 10
    assert result.mean_accuracy == pytest.approx(0.5)
    assert result.spread == pytest.approx(0.2357, abs=1e-4)


def test_what_is_missing_is_named(tmp_path):
    leave_flags(tmp_path / "a", [True])
    leave_flags(tmp_path / "b", [True], first=5)
    with pytest.raises(UserError, match="share no images"):
        compare([str(tmp_path / "a"), str(tmp_path / "b")], "pgd20", "8/255")


def trained_folder(path, data="digits"):
    """A run folder as training leaves it, without its weights' bytes."""
    folder = RunFolder(path)
    name = {"digits": "digits-r-mc-la", "cifar10": "cifar10-r-mc-la"}[data]
    folder.prepare(recipe_named(name), {})
    folder.weights.write_bytes(b"")
    return folder


def test_a_command_is_named_only_where_it_works(tmp_path):
    """Results of somebody's own model lie in a folder that `evaluate` takes for none."""
    leave_flags(tmp_path / "a", [True])
    leave_flags(tmp_path / "own", [True], attack="fgsm")
    run = trained_folder(tmp_path / "run")

    def said(other):
        with pytest.raises(UserError) as caught:
            compare([str(tmp_path / "a"), str(other)], "pgd20", "8/255")
        return str(caught.value)

    options = "--attacks pgd20 --epsilon 8/255"
    assert f"run bilateral evaluate {run.path} {options} first" in said(run.path)
    own = said(tmp_path / "own")
    assert "own has no flags of pgd20 at 8/255: it has fgsm at 8/255; " in own
    assert f"evaluate that model with {options} first" in own and "bilateral evaluate" not in own
    run.weights.unlink()
    assert "has no model yet" in said(run.path)


@pytest.mark.parametrize("order", [1, -1])
def test_other_data_are_said_before_what_is_missing(tmp_path, capsys, order):
    """No command would make these two comparable."""
    trained_folder(tmp_path / "run")
    leave_flags(tmp_path / "own", [True, False], data="cifar10", budget="8/255")
    pair = [str(tmp_path / "run"), str(tmp_path / "own")][::order]
    for flags in (False, True):
        if flags:
            leave_flags(tmp_path / "run", [True, False], budget="40/255")
        for words in ([], ["--attack", "pgd20"], ["--attack", "autoattack"]):
            assert main(["compare", *pair, *words]) == 2
            said = capsys.readouterr().err
            assert "own" in said and "on cifar10" in said and "on digits" in said
            assert "bilateral evaluate" not in said and said.count("\n") == 1


def taken(tmp_path, capsys, *words):
    """The attack that a comparison of the two takes, and the line that says so."""
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json", *words]) == 0
    attack = json.loads(capsys.readouterr().out)["attack"]
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), *words]) == 0
    said = capsys.readouterr().err
    assert (
        said == f"{attack} is the strongest attack with flags in all runs (--attack for another)\n"
    )
    return attack


def test_without_an_attack_the_strongest_that_all_have_is_taken(tmp_path, capsys):
    for name in ("a", "b"):
        leave_flags(tmp_path / name, [True, True, True, False], attack="fgsm")
        leave_flags(tmp_path / name, [False, True, False, False], attack="pgd20")
        leave_flags(tmp_path / name, [True, True, False, False], attack="pgd20-cw")
    assert taken(tmp_path, capsys) == "pgd20"
    leave_flags(tmp_path / "a", [False] * 4, attack="spsa")
    assert taken(tmp_path, capsys) == "pgd20", "the other has none of it"
    for attack in ("apgd", "autoattack"):
        for name in ("a", "b"):
            leave_flags(tmp_path / name, [True, False], attack=attack)
        assert taken(tmp_path, capsys) == attack, "on fewer images, and yet the stronger"
    leave_flags(tmp_path / "b", [], attack="autoattack")
    assert taken(tmp_path, capsys) == "apgd", "of what is under way nothing is known"


def test_budgets_are_not_mixed_up(tmp_path, capsys):
    """More images break at a larger budget: that makes no attack stronger."""
    for name in ("a", "b"):
        leave_flags(tmp_path / name, [True, False], attack="pgd20", budget="8/255")
        leave_flags(tmp_path / name, [False, False], attack="fgsm", budget="16/255")
    pair = ["compare", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(pair) == 2
    assert "have flags at 16/255, 8/255: give --epsilon" in capsys.readouterr().err
    assert taken(tmp_path, capsys, "--epsilon", "8/255") == "pgd20"


def test_what_one_run_has_is_asked_of_the_other(tmp_path, capsys):
    leave_flags(tmp_path / "a", [True, False], attack="apgd")
    run = trained_folder(tmp_path / "b").path
    assert main(["compare", str(tmp_path / "a"), str(run)]) == 2
    said = capsys.readouterr().err
    assert f"run bilateral evaluate {run} --attacks apgd --epsilon 8/255 first" in said
    assert said.count("\n") == 1


def test_other_data_are_refused(tmp_path):
    leave_flags(tmp_path / "a", [True, False])
    leave_flags(tmp_path / "b", [True, False], data="svhn")
    with pytest.raises(UserError, match="on svhn"):
        compare([str(tmp_path / "a"), str(tmp_path / "b")], "pgd20", "8/255")


def test_other_settings_under_one_name_are_refused(tmp_path):
    """Somebody's own attack may have been edited in between; what is not written down is let be."""
    for run, settings in (("one", {"digest": "a"}), ("two", {"digest": "b"}), ("old", {})):
        leave_flags(tmp_path / run, [True, False])
        (path,) = (tmp_path / run / "attacks").glob("*.json")
        record = json.loads(path.read_text())
        record["settings"] = dict.fromkeys(record["settings"], settings)
        path.write_text(json.dumps(record))
    one, two, old = (str(tmp_path / run) for run in ("one", "two", "old"))
    with pytest.raises(UserError, match="different versions of pgd20"):
        compare([one, two], "pgd20", "8/255")
    assert compare([one, old], "pgd20", "8/255").runs[1].accuracy == 0.5


def test_other_images_of_the_same_name_are_refused(tmp_path):
    """Two folders, or a data set made anew: image 7 of the one is not image 7 of the other."""
    leave_flags(tmp_path / "a", [True, False], digest="1")
    leave_flags(tmp_path / "b", [True, False], digest="2")
    with pytest.raises(UserError, match="b was evaluated on other images of digits than "):
        compare([str(tmp_path / "a"), str(tmp_path / "b")], "pgd20", "8/255")


def test_the_command_needs_no_torch(tmp_path):
    for name, robust in (("a", [True, True, False]), ("b", [True, False, False])):
        leave_flags(tmp_path / name, robust)
    code = (
        "import sys; from bilateral.cli import main; main(sys.argv[1:]); "
        "sys.exit('torch' in sys.modules)"
    )
    words = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--attack", "pgd20", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=True)
    assert json.loads(done.stdout)["images"] == 3


def test_a_run_is_not_compared_with_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    leave_flags(tmp_path / "a", [True, False])
    for other in ("a", "./a/", str(tmp_path / "a")):
        assert main(["compare", "a", other, "--attack", "pgd20"]) == 2
        assert f"{other} is named twice" in capsys.readouterr().err


def test_a_copy_is_no_other_seed(tmp_path, capsys):
    """The mean of a run and its copy had a spread of 0.0 "over 2 runs"."""
    leave_flags(tmp_path / "a", [True, False], weights="w", code="c")
    leave_flags(tmp_path / "b", [True, True], weights="v", code="c")
    leave_flags(tmp_path / "edited", [False, True], weights="w", code="d")
    a, b, edited = (str(tmp_path / name) for name in ("a", "b", "edited"))
    assert main(["compare", a, b, edited, "--attack", "pgd20"]) == 0
    shutil.copytree(a, tmp_path / "copy")
    capsys.readouterr()
    copy = str(tmp_path / "copy")
    assert main(["compare", b, a, copy, "--attack", "pgd20"]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and not said.out
    assert f"{a} and {copy} are one model: their weights and code are the same" in said.err


def test_csv_is_csv_alone(tmp_path, capsys):
    for name in ("a", "b"):
        leave_flags(tmp_path / name, [True, False])
    words = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--attack", "pgd20"]
    assert main([*words, "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and {line.count(",") for line in lines} == {5}


def test_long_names_stand_above_the_table():
    head = ["run", "accuracy (%)", "only first"]
    short = (head, [["a", "1.0", "2"], ["b", "3.0", "4"]])
    assert narrow(short) == ([], short)
    names = ["x" * 70, "y" * 70]
    legend, (again, rows) = narrow((head, [[name, "1.0", "2"] for name in names]))
    assert legend == [f"A  {names[0]}", f"B  {names[1]}", ""]
    assert again == head and rows == [["A", "1.0", "2"], ["B", "1.0", "2"]]


def test_letters_run_out():
    assert list(lettered(["b", "a", "b"]).items()) == [("b", "A"), ("a", "B")]
    many = lettered(map(str, range(30)))
    assert many["0"] == "1" and many["29"] == "30" and len(set(many.values())) == 30
