"""The FT job: its runs, the choice of a learning rate, resuming a killed job, and the FT of a whole network."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
import torch

from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.hypergrad import Params, Pretrained
from metapt.training.checkpoint import Checkpoint
from metapt.training.seeds import generator
from metapt.twostage import finetuning
from metapt.twostage.finetuning import Scores, Start, Transfer, check_examples, finetune, parts, write
from metapt.twostage.heads import Examples, FinetuneProblem, Score
from metapt.twostage.jobs import FinetuneSettings

EVALUATIONS = ["full_transfer", "linear_evaluation"]
RATES = {1e-4: 60.0, 1e-3: 70.0, 1e-2: 65.0}
"""Validation AUROC by learning rate."""
EARLY = {1e-4: 55.0, 1e-3: 50.0, 1e-2: 65.0}
"""The same after the first epoch."""


def settings(seed: int = 1, evaluations: list[str] = EVALUATIONS) -> FinetuneSettings:
    return FinetuneSettings(
        domain="toy", arm="plain", seed=seed, finetune_seeds=2, evaluations=evaluations, checkpoint="ft.pt"
    )


class Run:
    """An FT run of two epochs, whose validation AUROC goes from `EARLY` to `RATES`."""

    def __init__(self, runs: Runs, lr: float, stream: torch.Generator, label: str) -> None:
        self.lr, self.curve = lr, list[float]()
        self.score = partial(runs.take, label, stream, lr)

    def train(self, epochs: int) -> None:
        self.curve = [EARLY[self.lr], RATES[self.lr]][:epochs]


class Runs:
    """FT runs that record their names and streams; `stop` is the number of the run that is interrupted."""

    def __init__(self, folder: Path, stop: int = 1000) -> None:
        self.folder, self.stop = folder, stop
        self.taken: dict[str, float] = {}

    def take(self, name: str, stream: torch.Generator, lr: float) -> Score:
        if len(self.taken) == self.stop:
            raise KeyboardInterrupt
        self.taken[name] = float(torch.rand((), generator=stream))
        return Score(50.0 + len(self.taken), [50.0], RATES[lr], 1, lr, [40.0, RATES[lr]])

    def linear(self, problem: Any, start: Any, streams: list[torch.Generator]) -> list[Score]:
        return [self.take(f"{number}", each, 1e-3) for number, each in enumerate(streams)]

    def finetune(self, given: FinetuneSettings | None = None, lrs: Any = RATES, epochs: int | None = None) -> Scores:
        given = given or settings()
        start = partial(Start, problem=cast(FinetuneProblem, None), pretrained=Pretrained({}, {}, {}))
        checkpoint = Checkpoint(self.folder / f"ft{given.seed}.pt", "mine")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(finetuning, "Transfer", lambda problem, start, *run: Run(self, *run))
            patch.setattr(finetuning, "linear_evaluation", self.linear)
            return finetune(given, checkpoint, lambda todo: [start(todo)], list(lrs), epochs)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.mark.parametrize(("epochs", "best", "count"), [(None, 1e-3, 4), (1, 1e-2, 2), (2, 1e-3, 2)])
def test_the_first_ft_seed_tries_all_learning_rates_and_the_best_serves_the_others(
    epochs: int | None, best: float, count: int, runs: Runs
) -> None:
    """After trials of some epochs only the best one goes on."""
    scores = runs.finetune(epochs=epochs)
    assert {scores[part].learning_rate for part in parts(settings()) if part[0] == "full_transfer"} == {best}
    assert len(runs.taken) == 2 + count
    assert list(runs.taken)[-1] == f"FT of plain, seeds 1 and 1, learning rate {best:g}"


def test_a_killed_job_repeats_one_run_at_most_and_ends_with_the_same_streams(tmp_path: Path) -> None:
    whole, first, second = Runs(tmp_path / "whole"), Runs(tmp_path, stop=4), Runs(tmp_path)
    whole.finetune()
    with pytest.raises(KeyboardInterrupt):
        first.finetune()
    second.finetune()
    assert list((first.taken | second.taken).items()) == list(whole.taken.items())
    assert not first.taken.keys() & second.taken.keys()


def test_a_run_has_its_own_random_stream(runs: Runs) -> None:
    runs.finetune(lrs=[1e-3])
    drawn = float(torch.rand((), generator=generator("toy finetune", "full_transfer", 1, 0)))
    assert runs.taken["FT of plain, seeds 1 and 0, learning rate 0.001"] == drawn
    runs.finetune(settings(seed=2), lrs=[1e-3])
    whole = [value for name, value in runs.taken.items() if name.startswith("FT of plain")]
    assert len(set(whole)) == 2 * 2, "each PT seed has its own, too"


def test_the_tables_hold_each_run_once_in_the_order_of_the_config(runs: Runs, tmp_path: Path) -> None:
    outputs = {name: tmp_path / f"{name}.csv" for name in ("metrics", "series")}
    scores = runs.finetune(lrs=[1e-3])
    own: Any = lambda score: {"AUROC": score.test_auroc}, outputs, lambda score: {"task": {3: 1.0}}
    write(scores, settings(), "n5", *own)
    table, series = metrics.read(outputs["metrics"]), pd.DataFrame(metrics.read_series_rows(outputs["series"]))
    assert table[table["metric"] == "AUROC"]["replicate"].tolist() == [1000, 1001] * 2
    assert (table["experiment"].unique(), table["setting"].unique()) == (["toy"], ["n5"])
    names = [f"{evaluation}, {name}" for evaluation in EVALUATIONS for name in ("task", "validation AUROC (%)")]
    assert series["name"].drop_duplicates().tolist() == names
    curve = series[series["name"] == names[1]]
    assert (curve["step"].tolist(), curve["value"].tolist()) == ([1, 2] * 2, [40.0, 70.0] * 2)
    assert not list(tmp_path.glob("ft*.pt"))
    backwards = EVALUATIONS[::-1]
    assert parts(settings(evaluations=backwards)) == [(name, number) for name in backwards for number in (0, 1)]


def test_scores_are_kept_for_the_same_run_only(tmp_path: Path) -> None:
    score = Score(70.0, [60.0, math.inf], 65.0, 2, 1e-3, [64.0, 65.0])
    Scores(Checkpoint(tmp_path / "ft.pt", "mine")).add({("full_transfer", 2): score})
    assert Scores(Checkpoint(tmp_path / "ft.pt", "mine"))["full_transfer", 2] == score
    assert ("full_transfer", 2) not in Scores(Checkpoint(tmp_path / "ft.pt", "another"))


BOTH = torch.tensor([[0.0, 1.0], [1.0, 0.0]])


def test_examples_that_can_not_be_learned_from_or_judged_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    for train, test, words in (
        (1, BOTH, "2 or more things, and here on 1"),
        (2, 0 * BOTH, "no class has both labels among the 2 test things"),
    ):
        with pytest.raises(DataError, match=words):
            check_examples(train, {"validation things": BOTH, "test things": test}, ["A", "B"], "things")
    with caplog.at_level(logging.WARNING):
        check_examples(2, {"test things": BOTH[:, :1].repeat(1, 2) * torch.tensor([1.0, 0.0])}, ["A", "B"], "things")
    assert caplog.messages == ["the AUROC on the test things leaves out B: all 2 have the same label"]


class Product(FinetuneProblem):
    """A product of two matrices, whose minibatches come from a stream; `flipped`: validation has opposite labels."""

    def __init__(self, epochs: int, flipped: bool) -> None:
        start = generator("start")
        self.epochs, inputs = epochs, torch.randn(40, 5, generator=start)
        labels = (inputs[:, :3] + torch.randn(40, 3, generator=start) > 0).float()
        if flipped:
            labels[20:30] = 1 - labels[20:30]
        self.sets = {"train": (inputs[:20], labels[:20]), "validation": (inputs[20:30], labels[20:30])}
        self.sets["test"] = inputs[30:], labels[30:]
        self.first, self.weight = torch.randn(5, 4, generator=start), torch.randn(3, 4, generator=start)

    def initial_head(self, generator: torch.Generator) -> Params:
        return {"weight": self.weight, "bias": torch.zeros(3)}

    def sampler(self, generator: torch.Generator) -> Callable[[], Iterator[Examples]]:
        inputs, labels = self.sets["train"]

        def epoch() -> Iterator[Examples]:
            for batch in torch.randperm(20, generator=generator).split(8):
                yield Examples(inputs[batch], labels[batch])

        return epoch

    def trained(self, network: Params, batch: Examples) -> Examples:
        return Examples(batch.features @ network["first"], batch.labels)

    def examples(self, network: Params, part: str) -> Examples:
        inputs, labels = self.sets[part]
        return Examples(inputs @ network["first"], labels)


def transfer(epochs: int = 12, encoder: Params | None = None, flipped: bool = False) -> Transfer:
    problem = Product(epochs, flipped)
    network = Pretrained(encoder or {"first": problem.first}, {}, {})
    return Transfer(problem, network, 0.05, generator("batches"))


def test_a_run_by_parts_is_the_run_in_one_go() -> None:
    parts = transfer()
    parts.train(5)
    first = list(parts.curve)
    whole = transfer().score()
    assert len(first) == 5
    assert parts.score() == whole
    assert whole.validation_curve[:5] == first
    assert len(whole.validation_curve) == 12
    assert whole.validation_auroc > first[0]


def test_the_best_epoch_is_tested_not_the_last() -> None:
    """With opposite labels in validation an early epoch is the best one."""
    long = transfer(flipped=True).score()
    assert long.validation_curve[-1] < long.validation_auroc == max(long.validation_curve)
    assert long.validation_curve[long.best_epoch - 1] == long.validation_auroc
    assert long.class_aurocs == transfer(long.best_epoch, flipped=True).score().class_aurocs
    assert long.test_auroc == pytest.approx(sum(long.class_aurocs) / 3)


def test_a_diverged_network_has_no_score_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    score = transfer(encoder={"first": torch.full((5, 4), math.nan)}).score()
    assert math.isnan(score.test_auroc)
    assert score.best_epoch == 1
    assert "were not finite" in caplog.text
