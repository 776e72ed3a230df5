"""The recipe `folder`: what is chosen for which pictures, and the command from end to end."""

import json

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from bilateral.cli import main
from bilateral.commands.sweep import Plan, read_plan, runs_of
from bilateral.commands.train import default_run
from bilateral.config import Data, Labels, Run
from bilateral.data.survey import Survey
from bilateral.errors import UserError
from bilateral.models import build_model
from bilateral.paper.own_pictures import (
    FOLDER,
    SIZES,
    Network,
    chosen,
    described,
    for_folder,
    network_of,
)
from bilateral.paper.recipes import RECIPES, recipe_named
from bilateral.training.preparation import remarks
from bilateral.weights import write_weights
from entry_point import bilateral


def given(**fields):
    return FOLDER.with_fields(data=Data(name="folder:mine"), **fields)


def choice(classes=10, images=50_000, side=32, size=(32, 32), **fields):
    return chosen(Survey(classes, images, side, size), given(**fields))


def test_small_pictures_of_one_size():
    run = choice()
    assert (run.recipe, run.data.name) == ("folder", "folder:mine")
    assert (run.model, run.image_size) == ("preact-resnet-18", None)
    assert run.data.augment == "crop-flip"
    adversary = run.adversary
    assert (adversary.steps, adversary.target, adversary.loss) == (1, "none", "cross-entropy")
    assert adversary.random_start and adversary.start_width == 2.0
    assert (adversary.projection, adversary.batch_norm) == ("none", "eval")
    assert adversary.epsilon == adversary.step_size == 8 / 255
    assert run.labels.rule == "one-hot"
    assert (run.guard, run.check_epochs, run.epochs) == ("two-step", 1, 30)
    assert (run.optimiser.batch_size, run.optimiser.learning_rate) == (128, 0.1)
    assert run.averaging == 0.999


def test_photographs():
    run = choice(side=375, size=None)
    assert (run.model, run.image_size) == ("resnet-50", 224)
    assert run.data.augment == "resized-crop-flip"
    assert run.adversary.epsilon == run.adversary.step_size == 4 / 255
    small = choice()
    assert run.adversary.with_fields(epsilon=8 / 255, step_size=8 / 255) == small.adversary
    assert (run.optimiser, run.epochs, run.guard) == (small.optimiser, 30, "two-step")


@pytest.mark.parametrize(
    ("side", "size", "expected"),
    [
        (8, (8, 8), None),
        (48, (64, 48), None),
        (64, (64, 64), None),
        (20, None, 32),
        (32, None, 32),
        (63, None, 32),
        (64, None, 64),
        (65, (65, 65), 64),
        (30, (200, 30), 32),
        (96, (96, 96), 64),
        (127, None, 64),
        (128, None, 128),
        (224, (224, 224), 224),
        (223, None, 128),
        (3000, (4000, 3000), 224),
    ],
)
def test_the_image_size(side, size, expected):
    """As they are, if small and alike; else the largest standard size that enlarges few."""
    run = choice(side=side, size=size)
    assert run.image_size == expected
    large = expected is not None and expected > 64
    assert (run.model == "resnet-50") == large
    assert (run.data.augment == "resized-crop-flip") == (side > 64)
    assert run.adversary.epsilon == (4 if side > 64 else 8) / 255


@pytest.mark.parametrize("side", [65, 224, 3000])
def test_few_photographs_are_shrunk(side):
    """They stay photographs: random parts, and the budget that is not easily seen."""
    for images, size in ((4999, 32), (5000, choice(side=side, size=None).image_size)):
        run = choice(images=images, side=side, size=None)
        assert run.image_size == size
        small = "wrn-16-2" if images < 5000 else "preact-resnet-18"
        assert run.model == (small if size <= 64 else "resnet-50")
        assert run.data.augment == "resized-crop-flip" and run.adversary.epsilon == 4 / 255
    assert choice(images=600, side=side, size=None, image_size=128).model == "resnet-50"
    assert choice(images=600, side=64, size=None).image_size == 64, "no photographs"
    part = Data(name="folder:mine", images_per_class=20)
    run = chosen(Survey(10, 50_000, side, None), FOLDER.with_fields(data=part))
    assert run.image_size == 32, "the part counts"


@pytest.mark.parametrize(
    ("side", "asked", "expected"),
    [
        (8, None, "none"),
        (15, None, "none"),
        (16, None, "crop-flip"),
        (32, None, "crop-flip"),
        (32, 8, "none"),
        (8, 32, "crop-flip"),
        (8, 96, "resized-crop-flip"),
    ],
)
def test_tiny_pictures_are_not_cropped(side, asked, expected):
    """A crop moves by 4 pixels whatever the size: of 8 x 8 pixels half the picture may go."""
    run = choice(side=side, size=(side, side), image_size=asked)
    assert run.data.augment == expected


@pytest.mark.parametrize("asked", [16, 64, 65, 96, 224])
def test_a_given_image_size_decides_what_follows_from_it(asked):
    for survey, photographs in (({"side": 375, "size": None}, True), ({}, asked > 64)):
        run = choice(**survey, image_size=asked)
        assert run.image_size == asked
        assert run.model == ("preact-resnet-18" if asked <= 64 else "resnet-50")
        assert run.adversary.epsilon == (4 if photographs else 8) / 255
        assert (run.data.augment == "resized-crop-flip") == photographs


@pytest.mark.parametrize(
    ("images", "batch", "epochs", "check"),
    [
        (1_300_000, 128, 30, 1),
        (50_000, 128, 30, 1),
        (20_000, 128, 75, 1),
        (7_500, 128, 100, 3),
        (5_000, 128, 100, 5),
        (4_999, 32, 25, 5),
        (1_000, 32, 25, 25),
        (640, 32, 25, 39),
        (600, 32, 28, 40),
        (200, 32, 84, 40),
        (36, 8, 125, 40),
        (20, 8, 250, 40),
        (5, 5, 500, 40),
        (2, 2, 500, 40),
    ],
)
def test_batches_and_epochs_follow_from_the_number(images, batch, epochs, check):
    run = choice(images=images)
    assert (run.optimiser.batch_size, run.epochs, run.check_epochs) == (batch, epochs, check)
    assert batch <= images
    assert run.optimiser.learning_rate == pytest.approx(0.1 * batch / 128)
    assert run.model == ("wrn-16-2" if images < 5000 else "preact-resnet-18")
    said = remarks(run, 10, images)
    assert not any("updates in all" in one for one in said), "not of its own choice"


def test_few_pictures_turn_the_weights_of_its_own_small_network():
    """Somebody's own may have no convolutions; what begins with weights was not tried so."""
    assert choice(images=4_999).optimiser.turn == 0.03
    for run in (
        choice(images=5_000),
        choice(images=600, weights="w.safetensors"),
        choice(images=600, model="own.py:build"),
        choice(images=600, image_size=128),
    ):
        assert run.optimiser.turn is None
    assert choice(images=600, model="own.py:build").epochs == 50, "as without"
    said = described(choice(images=600), Survey(10, 600, 32, (32, 32)))
    assert "batches of 32, convolutions turn by 0.03, guard two-step" in said


@pytest.mark.parametrize(
    ("images", "batch", "epochs"),
    [(50_000, 128, 30), (4_999, 128, 60), (600, 128, 60), (200, 32, 60)],
)
def test_what_begins_with_weights_has_its_own_length(images, batch, epochs):
    run = choice(images=images, weights="w.safetensors")
    assert (run.optimiser.batch_size, run.epochs) == (batch, epochs)
    assert run.optimiser.learning_rate == pytest.approx(0.1 * batch / 128)


def test_of_a_part_of_the_folder_the_part_counts():
    part = Data(name="folder:mine", images_per_class=20)
    run = chosen(Survey(10, 50_000, 32, (32, 32)), FOLDER.with_fields(data=part))
    assert (run.optimiser.batch_size, run.epochs) == (32, 84)
    whole = Data(name="folder:mine", images_per_class=9000)
    assert chosen(Survey(10, 50_000, 32, (32, 32)), FOLDER.with_fields(data=whole)).epochs == 30


def test_everything_chosen_is_a_valid_run_and_is_said():
    for size in (None, *SIZES, 300):
        for images in (2, 30, 999, 10**6):
            run = choice(images=images, side=size or 40, size=None)
            assert Run.model_validate(run.model_dump()) == run
            said = described(run, Survey(7, images, size or 40, None))
            assert "\n" not in said
            for word in (run.model, f"batches of {run.optimiser.batch_size}", "two-step", "255"):
                assert word in said
    part = choice().with_fields(data=Data(name="folder:mine", images_per_class=30))
    said = described(part, Survey(10, 50_000, 32, (32, 32), 10_000))
    assert "(32 x 32 pixels), 30 of each for training, 10,000 more for test" in said
    said = described(choice(), Survey(10, 50_000, 32, (32, 32), 10_000))
    seen = "50,000 pictures in 10 classes (32 x 32 pixels), 10,000 more for test"
    assert said.startswith(f"{seen}: preact-resnet-18,")
    assert "images as they are, budget 8/255, one-hot labels, epochs" in said
    for ratio, words in ((None, "classes - 1"), (7, "7")):
        labels = Labels(rule="adversarial", ratio=ratio)
        run = choice().with_fields(labels=labels)
        survey = Survey(10, 50_000, 32, (32, 32))
        assert f"adversarial labels (ratio {words}), epochs" in described(run, survey)
    assert "epochs 30, batches of 128" in said


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Two classes of 14 JPEGs each, of different sizes around 40 pixels."""
    root, generator = tmp_path_factory.mktemp("mine"), np.random.default_rng(0)
    for label, name in enumerate(("ape", "bee")):
        (root / name).mkdir()
        for number in range(14):
            height, width = generator.integers(36, 48, 2)
            pixels = generator.integers(0, 60, (height, width, 3))
            pixels[..., label] += 150
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.jpg")
    return root


QUICK = ["--model", "small-cnn", "--epochs", "2", "--check-epochs", "2", "--device", "cpu"]


def test_a_folder_needs_nothing_else(photographs, tmp_path, capsys):
    """But the network and the epochs, for the test's sake."""
    words = ["train", "folder", "--data", f"folder:{photographs}", *QUICK, "--out", tmp_path]
    done = bilateral(*words)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("folder: ")]
    assert "26 pictures in 2 classes (shorter side " in line
    assert "small-cnn, images 32 x 32, budget 8/255" in line
    assert "epochs 2, batches of 8, guard two-step" in line
    folder = tmp_path / "folder-small-cnn" / "seed0"
    run = json.loads((folder / "config.json").read_text())["run"]
    assert (run["recipe"], run["image_size"], run["guard"]) == ("folder", 32, "two-step")
    assert run["optimiser"]["turn"] is None, "not of a network of somebody's own"
    assert run["adversary"]["projection"] == "none" and run["optimiser"]["batch_size"] == 8
    assert (folder / "model.safetensors").exists()
    assert main(list(map(str, words))) == 0, "the same is chosen again"
    assert "already finished" in capsys.readouterr().out
    out = ["--out", str(tmp_path / "again"), "--quiet", "--device", "cpu"]
    assert main(["train", str(folder / "config.json"), *out]) == 0
    assert "pictures in 2 classes" not in capsys.readouterr().err, "nothing is chosen here"
    copy = tmp_path / "again" / "folder-small-cnn" / "seed0"
    assert (copy / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert main(["evaluate", str(folder), "--attacks", "fgsm", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 2


def test_its_own_network_is_trained_with_weights_that_turn(photographs, tmp_path):
    words = ["train", "folder", "--data", f"folder:{photographs}", "--epochs", "1"]
    done = bilateral(*words, "--check-epochs", "1", "--quiet", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / json.loads(done.stdout)["folder"]
    run = json.loads((folder / "config.json").read_text())["run"]
    assert (run["model"], run["optimiser"]["turn"]) == ("wrn-16-2", 0.03)


def test_photographs_are_cropped_and_decoded_as_they_are_needed(photographs, tmp_path):
    """Everything overridden is what was given, and what follows from the size follows."""
    words = [*QUICK[:2], "--epochs", "1", "--image-size", "80", "--optimiser.batch-size", "13"]
    words += ["--adversary.epsilon", "2/255", "--guard", "watch", "--labels.ratio", "7"]
    words += ["--check-epochs", "0", "--machine.workers", "0", "--quiet", "--json"]
    done = bilateral("train", "folder", "--data", f"folder:{photographs}", *words, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    folder = tmp_path / json.loads(done.stdout)["folder"]
    run = json.loads((folder / "config.json").read_text())["run"]
    assert (run["image_size"], run["data"]["augment"]) == (80, "resized-crop-flip")
    assert run["adversary"]["epsilon"] == pytest.approx(2 / 255)
    assert run["adversary"]["step_size"] == pytest.approx(2 / 255), "scaled from 4/255"
    assert (run["guard"], run["labels"]["ratio"]) == ("watch", 7)
    assert run["optimiser"]["batch_size"] == 13


def weights_file(path, model="small-cnn", about=None, **said):
    known = {"classes": ["p", "q", "r"], "channels": 3, "image_size": [48, 48], "model": model}
    write_weights(path, build_model("small-cnn", 3), {**known, **said} if about is None else about)
    return path


@pytest.mark.parametrize(("side", "size"), [(8, (8, 8)), (375, None)])
def test_weights_decide_network_and_image_size(side, size):
    """Unless a size is given; what the pictures are like still decides budget and augmentation."""
    survey, network = Survey(10, 600, side, size), Network("wrn-10-1", 48)
    run, new = chosen(survey, given(), network), chosen(survey, given())
    assert (run.model, run.image_size) == ("wrn-10-1", 48)
    assert run.adversary == new.adversary
    assert chosen(survey, given(image_size=96), network).image_size == 96


def test_of_which_network_weights_are(tmp_path):
    path = weights_file(tmp_path / "w.safetensors")
    assert network_of(given(weights=str(path))) == Network("small-cnn", 48)
    assert network_of(given()) is None
    weights_file(path, image_size=[48, 32])
    assert network_of(given(weights=str(path))) is None, "no one size for all"
    weights_file(path, model="own.py:build")
    assert network_of(given(weights=str(path))) is None, "no code on a file's word"
    weights_file(path, model=None)
    assert network_of(given(weights=str(path))) is None, "written before files named it"
    weights_file(path, channels="3")
    assert network_of(given(weights=str(path))) == Network("small-cnn", 48)
    weights_file(path, channels="many")
    with pytest.raises(UserError, match="not a weights file of this package"):
        network_of(given(weights=str(path)))
    save_file(build_model("small-cnn", 3).state_dict(), path)
    assert network_of(given(weights=str(path))) is None, "somebody else's file"
    weights_file(path, model="wrn-994-100")
    with pytest.raises(UserError, match="does not fit the model"):
        network_of(given(weights=str(path)))
    weights_file(path, model="no-such-network")
    with pytest.raises(UserError, match="unknown model"):
        network_of(given(weights=str(path)))
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="damaged"):
        network_of(given(weights=str(path)))


def test_a_sweep_of_folder_chooses_by_what_each_run_has(photographs, tmp_path):
    weights_file(tmp_path / "w.safetensors")
    (tmp_path / "own.toml").write_text(
        f'recipe = "folder"\nheld_out = 4\n[fields]\ndata = "folder:{photographs}"\n'
        f'[[runs]]\nname = "new"\n[[runs]]\nname = "begun"\nweights = "{tmp_path}/w.safetensors"\n'
    )
    runs = dict(runs_of(read_plan(tmp_path / "own.toml")))
    new, begun = (runs[f"{name}/seed0"].run for name in ("new", "begun"))
    assert (new.model, begun.model) == ("wrn-16-2", "small-cnn")
    assert (new.image_size, begun.image_size) == (32, 48)
    assert begun.epochs == 60 and new.data.held_out == begun.data.held_out == 4


def test_a_folder_begins_with_weights_of_other_classes(photographs, tmp_path):
    weights_file(tmp_path / "w.safetensors")
    words = ["train", "folder", "--data", f"folder:{photographs}", "--weights", "w.safetensors"]
    done = bilateral(*words, "--epochs", "1", "--check-epochs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "small-cnn, images 48 x 48" in done.stderr
    assert "of 3 other classes: the last layer, head, is new" in done.stderr
    folder = tmp_path / "runs" / "folder" / "seed0"
    run = json.loads((folder / "config.json").read_text())["run"]
    assert run["weights"] == str(tmp_path / "w.safetensors"), "found from any folder"
    again = ["--weights", "runs/folder/seed0", "--name", "again", "--epochs", "1", "--json"]
    done = bilateral(*words[:-2], *again, cwd=tmp_path)
    assert done.returncode == 0 and "small-cnn, images 48 x 48" in done.stderr, done.stderr
    run = json.loads((tmp_path / "runs/again/seed0/config.json").read_text())["run"]
    assert run["weights"] == str(folder / "model.safetensors"), "a run folder is as good"
    done = bilateral(*words[:-1], "nowhere.safetensors", cwd=tmp_path)
    assert done.returncode == 2 and "no weights at nowhere.safetensors" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the recipe folder needs --data folder:PATH"),
        (["--epochs", "3"], "the recipe folder needs --data folder:PATH"),
        (["--data", "cifar10"], "is for --data folder:PATH, not cifar10"),
        (["--data", "/"], "not /; did you mean folder:/?"),
        (["--data", "folder:nowhere"], "nowhere is not a folder"),
        (["--data", "folder:."], "holds no class folders"),
        (["--data", "folder:.", "--epochs", "0"], "epochs"),
    ],
)
def test_without_pictures_one_line_says_what_to_give(words, message, tmp_path):
    done = bilateral("train", "folder", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and message in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_option_is_still_told(photographs):
    done = bilateral("train", "folder", "--data", f"folder:{photographs}", "--epoch", "3")
    assert done.returncode == 2 and "unknown option --epoch" in done.stderr


def test_help_needs_no_pictures():
    done = bilateral("train", "folder", "--help")
    assert done.returncode == 0 and "folder:PATH" in done.stdout


def test_it_is_a_recipe_like_others(photographs):
    assert recipe_named("folder") == FOLDER.with_fields(recipe="folder")
    assert "--data folder:PATH" in RECIPES["folder"].summary
    words = ["folder", f"--data=folder:{photographs}", "--image-size=64", "--seconds", "3"]
    recipe, run, survey = default_run(words, "bench train")
    assert (recipe, run.image_size, survey.classes) == ("folder", 64, 2)
    with pytest.raises(UserError, match="needs --data"):
        for_folder(recipe_named("folder"))


def test_a_sweep_starts_from_what_is_chosen(photographs):
    data = {"data.name": f"folder:{photographs}", "adversary.epsilon": "4/255"}
    plan = Plan(recipe="folder", fields=data, grid={"labels.rule": ["one-hot", "adversarial"]})
    runs = [planned.run for planned in dict(runs_of(plan)).values()]
    assert [run.labels.rule for run in runs] == ["one-hot", "adversarial"]
    for run in runs:
        assert (run.image_size, run.optimiser.batch_size) == (32, 8)
        assert run.adversary.epsilon == run.adversary.step_size == pytest.approx(4 / 255)
    with pytest.raises(UserError, match="needs --data"):
        dict(runs_of(Plan(recipe="folder")))
