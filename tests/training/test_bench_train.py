"""Throughput: what is counted, and the command through its real entry point."""

import json
import subprocess
import sys
import time

import pytest
import torch

from bilateral.cli import main
from bilateral.commands.bench import fields_of
from bilateral.config import Adversary, Labels, Run
from bilateral.machine import Machine
from bilateral.paper.recipes import recipe_named
from bilateral.tables import bench_train_table
from bilateral.training import bench as bench_module
from bilateral.training.bench import (
    bench_split,
    bench_train,
    flops_per_image,
    forward_flops,
    least_seconds,
)
from bilateral.training.engine import Engine
from bilateral.training.step import forwards_per_image

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("recipe", "forwards"),
    [
        ("cifar10-undefended", 3),
        ("cifar10-r-mc-la", 6),
        ("cifar10-fgsm", 5),
        ("cifar10-madry", 17),
        ("cifar10-madry-la", 18),
        ("cifar10-trades", 27),
        ("imagenet-r-mc-la-resnet50", 8),
    ],
)
def test_a_step_costs_so_many_forwards(recipe, forwards):
    """The paper's six: clean 1, attack 2, update 3."""
    assert forwards_per_image(recipe_named(recipe)) == forwards


def test_reading_the_labels_at_the_start_saves_a_forward():
    adversary = Adversary(target="most-confusing", reference="start")
    assert forwards_per_image(Run(adversary=adversary, labels=Labels())) == 5


def test_operations_are_those_of_the_layers():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.nn.Flatten())
    multiply_adds = 8 * 8 * 4 * 3 * 9
    assert forward_flops(model, torch.empty(1, 3, 8, 8)) == 2 * multiply_adds
    run = recipe_named("cifar10-r-mc-la")
    split, images = bench_split(run)
    assert images == 50_000 and split.pixels.shape == (16 * 128, 32, 32, 3)
    # 5.25 G multiply-adds a forward of WRN-28-10, six forwards: 63 GFLOP.
    assert flops_per_image(run, split) == pytest.approx(63e9, rel=0.01)


def test_images_a_second_are_what_a_slow_step_allows(monkeypatch):
    """The clock runs over the steps alone: 20 ms a step of 64 images is 3,200 at most."""
    take = Engine.take

    def slowly(self, *arguments):
        time.sleep(0.02)
        take(self, *arguments)

    monkeypatch.setattr(Engine, "take", slowly)
    run = recipe_named("digits-r-mc-la")
    split, images = bench_split(run)
    result = bench_train(run, split, images, CPU, Machine(), ("compile",), seconds=0.3)
    assert set(result["features"]) == {"all", "without compile"}
    for row in (result, *result["features"].values()):
        assert 200 < row["images_per_second"] < 64 / 0.02
        assert row["epoch_seconds"] == pytest.approx(1437 / row["images_per_second"])
        expected = row["images_per_second"] * flops_per_image(run, split) / 1e12
        assert row["tflops"] == pytest.approx(expected)
        assert row["share_of_matrix_rate"] == pytest.approx(row["tflops"] / result["matmul_tflops"])


def test_a_run_takes_at_least_its_arithmetic_over_the_machines_rate(monkeypatch):
    run = recipe_named("digits-r-mc-la").with_paths({"epochs": 7, "data.images_per_class": 20})
    split, _ = bench_split(run)
    monkeypatch.setattr(bench_module, "matmul_tflops", lambda *_: 0.5)
    assert least_seconds(run, split, CPU) == 0.0
    monkeypatch.setattr(bench_module, "LITTLE", 1.0)
    seconds = least_seconds(run, split, CPU)
    assert seconds == pytest.approx(7 * 200 * flops_per_image(run, split) / 0.5e12)


@pytest.mark.parametrize(("seconds", "told"), [(7200.0, True), (50.0, False)])
def test_long_training_on_a_cpu_is_told_before_the_first_step(
    seconds, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_module, "least_seconds", lambda *_: seconds)
    words = ["train", "digits-r-mc-la", "--epochs", "1", "--data.images-per-class", "13"]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert ("no GPU is used: training takes at least 2 h on this CPU" in said) == told
    capsys.readouterr()
    assert main(words) == 0
    assert "no GPU" not in capsys.readouterr().err, "what is finished takes no time"


def test_on_a_cpu_one_feature_at_a_time_is_switched_off(monkeypatch):
    """The layout follows the precision there, unless it is said."""
    capabilities = {"avx512_bf16": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    seen = []

    def measured(run, machine, *_):
        seen.append((run.precision, machine.channels_last))
        return {"images_per_second": 1.0, "first_step_seconds": 0.0}

    monkeypatch.setattr(bench_module, "_measure", measured)
    run = recipe_named("cifar10-r-mc-la").with_fields(model="small-cnn")
    split, images = bench_split(run)
    bench_train(run, split, images, CPU, Machine(), ("bfloat16", "channels-last"))
    assert seen == [("auto", "on"), ("float32", "on"), ("auto", "off")]


def test_a_variant_that_fails_costs_no_other_row(monkeypatch):
    measure = bench_module._measure

    def failing(run, *rest):
        if run.precision == "float32":
            raise torch.OutOfMemoryError("out of memory\nat length")
        return measure(run, *rest)

    monkeypatch.setattr(bench_module, "_measure", failing)
    run = recipe_named("digits-r-mc-la").with_fields(precision="auto")
    split, images = bench_split(run)
    result = bench_train(run, split, images, CPU, Machine(), ("bfloat16", "fused"), seconds=0.1)
    assert result["features"]["without bfloat16"] == {"error": "out of memory"}
    assert result["features"]["without fused"]["images_per_second"] > 0
    rows = bench_train_table(result)[1]
    assert rows[1][:2] == ["without bfloat16", "out of memory"] and len(rows[1]) == len(rows[0])


def bench(*words):
    return subprocess.run(
        [sys.executable, "-m", "bilateral", "bench", "train", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_prints_one_document_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = bench("digits-r-mc-la", "--seconds", "0.2", "--without", "fused", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for field in ("recipe", "model", "batch_size", "images_per_second", "tflops", "matmul_tflops"):
        assert result[field]
    assert list(result["features"]) == ["all", "without fused"]
    assert not list(tmp_path.iterdir())


def test_what_differs_from_the_recipe_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = bench("digits-r-mc-la", "--seconds", "0.1", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fields"] == {}
    words = ["digits-r-mc-la", "--method", "undefended", "--optimiser.batch-size", "32"]
    words += ["--seconds", "0.1", "--quiet"]
    done = bench(*words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["recipe"] == "digits-r-mc-la"
    assert result["fields"] == {"method": "undefended", "optimiser.batch_size": 32}
    line = "digits-r-mc-la with method undefended, optimiser.batch_size 32"
    assert bench(*words).stdout.splitlines()[0] == line
    done = bench(*words, "--format", "csv")
    assert line in done.stderr and done.stdout.startswith("features,"), "no line among the table's"


def test_a_configuration_of_another_name_is_said_by_what_is_not_a_default():
    run = recipe_named("digits-r-mc-la")
    known = fields_of(run.with_fields(recipe="mine"))
    assert known["data.name"] == "digits" and known["model"] == "small-cnn"
    assert "recipe" not in known and "method" not in known and fields_of(run) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "bench train needs a recipe as its first word"),
        (["cifar10-r-mc-al"], "unknown recipe"),
        (["digits-r-mc-la", "--without", "magic"], "magic"),
        (["digits-r-mc-la", "--seconds", "0"], "seconds"),
        (["imagenet-r-mc-la-resnet50"], "imagenet is not a folder"),
    ],
)
def test_bad_input_is_one_line(words, message):
    done = bench(*words)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
