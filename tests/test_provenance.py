"""Numbers that stay true: every result says of which version, configuration and weights it is."""

import json

import pytest

from bilateral.cli import main
from bilateral.config import Run, config_digest
from bilateral.models import build_model
from bilateral.paper.recipes import RECIPES
from bilateral.results import MemberFlags
from bilateral.runs import RunFolder
from bilateral.weights import read_weights, weights_digest

TRAIN = ["train", "digits-r-mc-la", "--epochs", "1", "--data.images-per-class", "13"]
TRAIN += ["--check-epochs", "0", "--quiet", "--optimiser.batch-size", "26"]
EFFORT = {"steps": 2, "restarts": 1, "apgd-steps": 2, "queries": 5, "noise-draws": 1}
EFFORT |= {"surface-images": 2, "binarization-images": 2}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run with everything measured of it, and a row of a table."""
    place = tmp_path_factory.mktemp("measured")
    run = place / "digits-r-mc-la" / "seed0"
    effort = [word for name, value in EFFORT.items() for word in (f"--effort.{name}", str(value))]
    models = ["--sources", str(run), "--targets", str(run), "--out", str(place / "transfer")]
    quick = ["reproduce", "label-formulas", "--quick", "--rows", "R-MC-LA (main)", "--columns"]
    quick += ["clean", "FGSM", "--out", str(place / "quick"), "--results", str(place / "results")]
    for words in (
        [*TRAIN, "--out", str(place)],
        ["evaluate", str(run), "--images", "20", "--attacks", "fgsm"],
        ["diagnose", str(run), "--images", "20", *effort],
        ["transfer", *models, "--images", "20", "--attacks", "fgsm"],
        quick,
    ):
        assert main([*words, "--quiet"]) == 0
    return place


def digests(folder):
    """What the configuration and the weights of a run folder really are."""
    model = build_model("small-cnn", 10, 1, (8, 8))
    read_weights(folder.weights, model)
    return config_digest(folder.read_run()), weights_digest(model)


def test_results_of_a_run_name_version_configuration_and_weights(measured):
    folder = RunFolder(measured / "digits-r-mc-la" / "seed0")
    configuration, weights = digests(folder)
    (entry,) = json.loads(folder.evaluation.read_text())["entries"]
    for result in (
        entry,
        json.loads(folder.attack("fgsm", "40/255").read_text()),
        json.loads(folder.diagnostics.read_text()),
    ):
        assert result["config_digest"] == configuration
        assert result["weights_digest"] == weights
        assert set(result["versions"]) == {"bilateral", "torch", "device"}


def test_a_transfer_names_them_of_every_model(measured):
    folder = RunFolder(measured / "digits-r-mc-la" / "seed0")
    configuration, weights = digests(folder)
    matrix = json.loads((measured / "transfer" / "transfer.json").read_text())
    assert matrix["config_digests"] == {str(folder.path): configuration}
    assert matrix["weights_digests"] == {str(folder.path): weights}
    assert set(matrix["versions"]) == {"bilateral", "torch", "device"}


def test_a_row_of_a_table_names_them_of_every_seed(measured):
    (row,) = json.loads((measured / "results" / "label-formulas.json").read_text())
    (path,) = (measured / "quick").glob("*/seed0")
    configuration, weights = digests(RunFolder(path))
    assert row["config_digests"] == [configuration] and row["weights"] == [weights]
    assert row["version"] and row["commit"] and row["command"]


def test_the_digest_of_a_configuration_is_of_what_is_computed():
    assert config_digest(Run()) == config_digest(Run(checkpoint_seconds=1.0))
    assert config_digest(Run()) != config_digest(Run(seed=1))
    assert config_digest(Run()) != config_digest(Run(labels={"gamma": 0.02}))


def test_a_field_of_a_later_version_leaves_the_digest_of_an_earlier_run():
    class Later(Run):
        label_noise: float = 0.0

    assert config_digest(Later(seed=3)) == config_digest(Run(seed=3))
    assert config_digest(Later(label_noise=0.1)) != config_digest(Later())


@pytest.mark.parametrize("one", sorted(RECIPES)[::7])
def test_recipes_have_digests_of_their_own(one):
    assert [
        name
        for name, recipe in RECIPES.items()
        if config_digest(recipe.run) == config_digest(RECIPES[one].run)
    ] == [one]


def test_forgotten_images_take_their_cost_with_them():
    flags = MemberFlags()
    flags.add([1, 2, 3, 4], [True] * 4, [], [], 8.0, 40, 20)
    flags.keep({2})
    assert (flags.images, flags.seconds, flags.forwards, flags.backwards) == ([2], 2.0, 10, 5)
    empty = MemberFlags()
    empty.keep({1})
    assert empty.seconds == 0.0
