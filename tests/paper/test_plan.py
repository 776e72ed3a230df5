"""Which runs and attacks a table needs, and what they cost."""

import pytest
import torch

from bilateral.attacks.settings import APGD
from bilateral.attacks.table import attack_members, attack_named
from bilateral.paper.cost import (
    attack_forwards,
    costs,
    duration,
    evaluation_forwards,
    training_images,
)
from bilateral.paper.plan import (
    Choices,
    all_runs,
    budget,
    columns_of,
    key_of,
    quick_attack,
    run_name,
    run_of,
)
from bilateral.paper.tables import TABLES, Attack, Clean, Column, PaperTable, Row, Transfer

TABLE = PaperTable(
    name="some",
    title="Some",
    where="here",
    columns=(
        Column("clean", Clean()),
        Column("CE20", Attack("pgd20-last")),
        Column("black", Transfer("fgsm", "cifar10-undefended")),
        Column("another", Transfer("fgsm")),
        Column("AutoAttack", Attack("autoattack"), 1000),
    ),
    rows=(
        Row("R-MC-LA", "cifar10-r-mc-la", {"clean": 90.7, "CE20": 55.3}),
        Row("half", "cifar10-r-mc-la", {}, {"data.images_per_class": 2000}),
        Row("quoted", None, {"clean": 50.0}),
    ),
)


def test_a_run_is_the_recipe_with_the_row_and_the_choices():
    run = run_of("cifar10-r-mc-la-long", 2, Choices(model="preact-resnet-18", epochs=30))
    assert (run.model, run.epochs, run.seed) == ("preact-resnet-18", 60, 2)
    assert run_of("cifar10-r-mc-la", 0, Choices(epochs=30)).epochs == 30, "the + is twice as long"
    assert run.optimiser.milestones == (0.5, 0.75)
    small = run_of("cifar10-r-mc-la", 0, Choices(), {"data.images_per_class": 500})
    assert small.data.images_per_class == 500 and small.data.name == "cifar10"


def test_folders_name_what_differs_from_the_recipe():
    choices = Choices(model="preact-resnet-18", epochs=30)
    run = run_of("cifar10-r-mc-la", 0, choices, {"data.images_per_class": 500})
    assert run_name(run, choices) == "cifar10-r-mc-la-preact-resnet-18-30-epochs-500-a-class"
    assert run_name(run_of("cifar10-r-mc-la", 0, Choices()), Choices()) == "cifar10-r-mc-la"


def test_models_are_shared_and_sources_are_found():
    runs = all_runs([TABLE, TABLE], Choices(seeds=2))
    assert sorted(runs) == [
        "cifar10-r-mc-la-2000-a-class/seed0",
        "cifar10-r-mc-la-2000-a-class/seed1",
        "cifar10-r-mc-la-2000-a-class/seed2",
        "cifar10-r-mc-la-2000-a-class/seed3",
        "cifar10-r-mc-la/seed0",
        "cifar10-r-mc-la/seed1",
        "cifar10-r-mc-la/seed2",
        "cifar10-r-mc-la/seed3",
        "cifar10-undefended/seed0",
    ]


def test_columns_follow_the_choices():
    columns = columns_of(TABLE, Choices(ensemble="apgd", images=500))
    assert [key_of(column) for column in columns] == [
        "clean",
        "pgd20-last",
        "black",
        "another",
        "apgd",
    ]
    assert [column.images for column in columns] == [500] * 5
    assert columns[-1].title == "apgd", "what stands above a figure is what was run"
    assert columns_of(TABLE, Choices(quick=True))[-1].title == "apgd-ce"
    assert columns_of(TABLE, Choices())[-1].images == 1000


@pytest.mark.parametrize(
    ("name", "quick"),
    [
        ("pgd1000-cw-last", "pgd5-cw-last"),
        ("pgd2-step8-last", "pgd2-last"),
        ("fgsm-rs-last", "fgsm-rs-last"),
        ("cw-l2-fine", "cw-l2"),
    ],
)
def test_quick_attacks_are_short(name, quick):
    assert quick_attack(name) == quick
    attack_members(quick, 0.1)


def test_quick_columns_are_named_after_what_was_run():
    columns = columns_of(TABLES["motivation-steps"], Choices(quick=True))
    assert [column.title for column in columns] == [
        *("clean", "FGSM", "pgd2-last", "pgd5-last", "pgd5-last", "pgd5-last", "apgd-ce")
    ]
    columns = columns_of(TABLES["black-box"], Choices(quick=True))
    assert [column.title for column in columns] == [
        *("clean", "undefended FGSM", "pgd5 made on cifar10-undefended"),
        *("another R-MC-LA FGSM", "pgd5 made on another seed", "apgd-ce"),
    ]
    for table in TABLES.values():
        titles = [column.title for column in columns_of(table, Choices())]
        assert titles == [column.title for column in table.columns]


def test_quick_runs_are_of_the_digits_at_a_larger_budget():
    for recipe in ("cifar10-r-mc-la", "cifar100-r-mc-la9", "imagenet-r-mc-la-resnet50"):
        run = run_of(recipe, 0, Choices(quick=True))
        assert (run.data.name, run.model, run.epochs) == ("digits", "small-cnn", 1)
        assert run.adversary.epsilon > 30 / 255 and run.image_size is None
    assert run_of("cifar10-madry-la-long", 0, Choices(quick=True)).epochs == 2
    assert budget(TABLE, Choices(quick=True)) == pytest.approx(40 / 255)


def test_forward_passes_of_attacks():
    counts = {name: attack_forwards(attack_named(name, 0.1)) for name in ("fgsm", "pgd20")}
    assert counts == {"fgsm": 3, "pgd20": 41}
    assert attack_forwards(APGD()) == 200 and attack_forwards(APGD(loss="dlr-targeted")) == 1800
    assert attack_forwards(attack_named("square", 0.1)) == 5000
    run = run_of("cifar10-r-mc-la", 0, Choices())
    ensemble = sum(map(attack_forwards, attack_members("autoattack", 0.1).values()))
    expected = 10_000 * (1 + 41 + 3 + 3) + 1000 * ensemble
    assert evaluation_forwards(TABLE, run, Choices()) == expected
    assert training_images(run) == 50_000


def test_costs_are_said_in_time():
    choices = Choices(model="small-cnn", epochs=1, images=100)
    cpu = torch.device("cpu")
    found = costs([TABLE], choices, cpu, {"cifar10-undefended-small-cnn-1-epochs/seed0"})
    lines = list(found.lines())
    assert lines[0] == "5 models for 1 table, 1 of them trained already"
    assert lines[1] == f"training 4 models: about {duration(found.training_seconds)}"
    assert lines[2] == f"evaluating some: at most {duration(found.evaluation_seconds['some'])}"
    assert "forward passes of small-cnn a second on images like cifar10's" in lines[3]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (5399, "90 min"),
        (5400, "2 h"),
        (47 * 3600, "47 h"),
        (48 * 3600, "2 days"),
        (364 * 86400, "364 days"),
        (16946.5 * 3600, "1.9 years"),
    ],
)
def test_times_are_readable(seconds, text):
    assert duration(seconds) == text


def test_every_table_can_be_planned():
    everything = all_runs(TABLES.values(), Choices())
    assert len(everything) > 30
    for table in TABLES.values():
        for column in columns_of(table, Choices(quick=True)):
            if isinstance(column.measure, Attack):
                attack_members(column.measure.name, 0.1)
