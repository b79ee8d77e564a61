"""The small parts of the loops: streams, seeds, records, plain training, the fitted head, guard, clocks and meters."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils.data import DataLoader, Sampler

from metapt import machine
from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import Params
from metapt.training.guard import HypergradientGuard
from metapt.training.interruption import Every
from metapt.training.loaders import LoaderBatches
from metapt.training.optimizers import OptimizerSpec
from metapt.training.progress import steps
from metapt.training.recorder import Measured, Recorder
from metapt.training.seeds import generator
from metapt.training.streams import ShuffledStream
from metapt.training.supervised import accuracy, finetune_head, minimise

from .problems import DTYPE, Batch, Classifier, Normed, classification, draw, same


def stream(replicates: list[int], size: int = 12, batch_size: int = 4) -> ShuffledStream:
    return ShuffledStream(size, batch_size, [generator("stream", replicate) for replicate in replicates])


def test_each_pass_of_a_stream_is_a_new_permutation() -> None:
    shuffled = stream([0, 1])
    passes = [torch.cat([shuffled.next() for _ in range(3)], dim=1) for _ in range(5)]
    for one in passes:
        assert torch.equal(one.sort(dim=1).values, torch.arange(12).expand(2, 12))
    rows = [row for one in passes for row in one]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(rows, 2))


def test_a_last_part_that_fills_no_minibatch_is_dropped_and_a_small_set_is_one_minibatch() -> None:
    shuffled = stream([0], size=11)
    first, second, third = (set(shuffled.next()[0].tolist()) for _ in range(3))
    assert not first & second
    assert third & (first | second)  # of the next pass
    assert stream([0], size=3).next().sort().values.tolist() == [[0, 1, 2]]


class Both(Sampler[int]):
    """Gives 1 if its two generators draw the same number, else 0."""

    def __init__(self) -> None:
        self.first, self.second = torch.Generator(), torch.Generator()

    def __iter__(self) -> Iterator[int]:
        yield int(torch.rand(1, generator=self.first) == torch.rand(1, generator=self.second))


def test_two_generators_of_a_sampler_draw_other_numbers() -> None:
    loaders = dict.fromkeys(("pretrain", "train", "validation"), DataLoader([0, 1], sampler=Both()))
    assert LoaderBatches(**loaders).pretrain().batch == 0


def test_what_a_replicate_sees_does_not_depend_on_how_many_others_there_are() -> None:
    few, many = stream([3]), stream([1, 3, 5, 7])
    for _ in range(10):
        assert torch.equal(few.next()[0], many.next()[1])
        assert torch.equal(few.normal()[0], many.normal()[1])


def test_a_stream_goes_on_from_its_saved_state() -> None:
    one = stream([0, 1], size=11)
    for _ in range(7):
        one.next()
        state, other = one.state_dict(), stream([5, 6], size=11)
        expected = [one.next(), one.normal(), one.next()]
        other.load_state_dict(state)
        assert all(map(torch.equal, [other.next(), other.normal(), other.next()], expected))
        one.load_state_dict(state)
        one.next()


def test_a_stream_of_nothing_is_refused() -> None:
    for size, batch_size in ((0, 4), (4, 0)):
        with pytest.raises(ConfigError, match=f"minibatches of {batch_size} of {size} examples can't be drawn"):
            stream([0], size, batch_size)


def test_equal_names_give_equal_random_streams_and_other_names_others() -> None:
    names = [("a", 1), ("a", 2), ("a", "1"), ("a1",), ("a", 1, 0), (1, "a"), ("b", 1)]
    draws = [torch.rand(8, generator=generator(*name)) for name in names]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    assert torch.equal(draws[0], torch.rand(8, generator=generator("a", 1)))
    assert draws[0][0].item() == pytest.approx(0.7216932, abs=1e-6)  # on every machine, in every process


def test_a_recorder_keeps_and_logs_every_so_many_steps_of_all_replicates_as_they_were() -> None:
    value, logged = torch.tensor([1.0, 2.0]), []

    def seen() -> Params:
        return {"a": value, "loss": -value[0]}

    recorder = Recorder(seen, 2, lambda step, values: logged.append((step, values["a"].tolist())))
    for step in range(1, 5):
        recorder(step)
        value += 10
    assert [(row["step"], row["name"], row["replicate"], row["value"]) for row in recorder.rows()] == [
        *[(2, "a", 0, 11.0), (2, "a", 1, 12.0), (2, "loss", 0, -11.0)],
        *[(4, "a", 0, 31.0), (4, "a", 1, 32.0), (4, "loss", 0, -31.0)],
    ]
    assert logged == [(2, [11.0, 12.0]), (4, [31.0, 32.0])]
    again = Recorder(seen, every=2)
    again.load_state_dict(recorder.state_dict())
    for each in (recorder, again):
        each(6)
    assert again.rows() == recorder.rows()
    assert len(again.rows()) == 9


def test_plain_training_is_torchs() -> None:
    inputs, targets = (torch.randn(20, n, generator=generator("data", n)) for n in (3, 2))
    module = torch.nn.Linear(3, 2)
    start = {name: value.detach().clone() for name, value in module.named_parameters()}
    before = copy.deepcopy(start)

    def loss(params: Params) -> Tensor:
        return (torch.func.functional_call(module, params, inputs) - targets).square().mean()

    trained = minimise(loss, start, OptimizerSpec("Adam", {"lr": 0.1}), steps=10)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss(dict(module.named_parameters())).backward()
        optimizer.step()
    torch.testing.assert_close(trained, {name: value.detach() for name, value in module.named_parameters()})
    assert same(start, before)
    assert not any(value.requires_grad for value in trained.values())


def test_accuracy_is_the_percentage_of_right_predictions_for_each_replicate() -> None:
    logits = torch.eye(4).repeat(3, 1, 1)
    logits[2, 3, 0] = torch.nan  # the replicate has diverged
    first, second, third = accuracy(logits, torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 2, 3]])).tolist()
    assert (first, second) == (100, 75)
    assert math.isnan(third)


def guard(factor: float = 10, max_skipped: int = 10) -> HypergradientGuard:
    return HypergradientGuard(explosion_factor=factor, max_skipped=max_skipped)


def test_the_guard_compares_with_the_median_of_the_last_hundred_that_were_not_0() -> None:
    """A lasting growth is none to be skipped; one large hypergradient does not let larger ones in."""
    first, silent, growing, jumping = guard(max_skipped=1), guard(), guard(), guard(1e4)
    assert all(first.accepts(10.0**step, step) for step in range(10)), "ten are needed"
    assert all(silent.accepts(norm, 0) for norm in [0.0] * 50 + [1.0] * 10)
    assert not silent.accepts(100.0, 1)
    assert all(growing.accepts(1.03**step, step) for step in range(300))
    assert not growing.accepts(20 * 1.03**250, 300)
    assert growing.accepts(9 * 1.03**250, 301)
    assert [jumping.accepts(norm, 0) for norm in (*[1.0] * 9, 9e3, 1.1e4, 0.9e4)] == [True] * 10 + [False, True]
    assert jumping.skipped == {"not finite": 0, "exploding": 1}


def test_the_guard_counts_in_a_row_only_and_its_state_can_be_saved() -> None:
    first, again = guard(max_skipped=3), guard(max_skipped=3)
    for norm in [math.nan, math.inf, 1.0, math.nan, math.nan]:
        first.accepts(norm, 0)
    again.load_state_dict(first.state_dict())
    assert again.skipped["not finite"] == 4
    with pytest.raises(TrainingError, match="3 hypergradients in a row"):
        again.accepts(math.nan, 0)


def test_every_is_true_once_the_time_has_passed_since_it_was_last_true(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("metapt.training.interruption.time.monotonic", lambda: now)
    due, always = Every(60), Every(0)
    answers = []
    for now in (100, 159, 160, 161, 219.9, 300, 359):  # noqa: B007 - the clock reads it
        answers.append(due())
        assert always()
    assert answers == [False, False, True, False, False, True, False]


def take(size: int) -> None:
    """Take memory, and give it back; not from what other tests have left free in the process, as a tensor may."""
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def test_measured_sees_the_time_and_the_memory_of_its_block_and_of_those_inside_it() -> None:
    gc.collect()  # garbage of other tests that is freed inside the block would count as memory of its start
    with Measured("cpu") as outer:
        with Measured("cpu") as inner:
            time.sleep(0.02)
            take(120_000_000)
        with Measured("cpu") as later:
            pass
    assert inner.seconds >= 0.02
    assert outer.peak_bytes >= inner.peak_bytes > 100e6
    assert later.peak_bytes < 20e6


def test_the_peak_since_the_start_of_the_process_survives_a_reset() -> None:
    before = machine.peak_memory_since_start()
    take(before - machine.memory_in_use() + 50_000_000)
    assert machine.peak_memory_since_start() > before
    machine.reset_peak_memory()
    assert machine.peak_memory() < before + 25_000_000, "the peak is that since the reset"
    assert machine.peak_memory_since_start() > before


def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    take(200_000_000)
    code = "from metapt import machine; print(machine.peak_memory_since_start())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(found) < 100e6 < machine.peak_memory_since_start()


def test_memory_that_was_free_in_the_process_counts_when_a_block_takes_it() -> None:
    peaks = []
    for _ in range(2):
        with Measured("cpu") as measured:
            parts = [bytearray(60_000) for _ in range(2000)]  # too small for memory of their own from the system
        peaks.append(measured.peak_bytes)
        last = parts.pop()  # so that what is freed lies below memory in use, which keeps it in the process
        parts.clear()
    assert min(peaks) > 100e6
    assert len(last) == 60_000


def test_kept_memory_is_taken_again_without_the_system() -> None:
    def faults(call: str) -> int:
        code = f"import resource as r; from metapt import machine; {call}\n"
        code += (
            "for _ in '12': before = r.getrusage(0).ru_minflt; b'1' * 10**8\nprint(r.getrusage(0).ru_minflt - before)"
        )
        return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    assert faults("machine.keep_freed_memory()") < 20 < faults("")


class Seen(dict[str, Any]):
    """Numbers of a loop that count how often they are read."""

    read = 0

    def items(self) -> Any:
        self.read += 1
        return super().items()


def test_a_loop_logs_where_it_is_and_reads_its_numbers_for_these_lines_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("metapt.training.progress.time.monotonic", lambda: float(next(clock)))
    seen = Seen(phi=[torch.tensor(3.0), torch.tensor([4.0])])
    with caplog.at_level("INFO", "metapt.training.progress"):
        for step in steps(0, 5, "PT", status=seen):
            seen["loss"] = torch.tensor(1 / (1 + step), requires_grad=True)
        for _ in steps(0, 3):
            pass
    assert [record.getMessage() for record in caplog.records] == [
        "PT: step 1 of 5, |phi| 5, loss 1, about 80 s left",
        "PT: step 3 of 5, |phi| 5, loss 0.3333, about 40 s left",
        "PT: step 5 of 5, |phi| 5, loss 0.2",
    ]
    assert seen.read == 3


def test_after_a_time_limit_no_step_begins_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[Any] = [(0, 50.0, [0, 1, 2]), (0, 0.0, [0]), (3, 0.0, []), (7, None, [7, 8])]
    for first, limit, taken in cases:
        clock = iter(range(0, 10_000, 10))
        monkeypatch.setattr("metapt.training.progress.time.monotonic", lambda clock=clock: float(next(clock)))
        assert list(steps(first, 9, time_limit=limit)) == taken


# The head that is fine-tuned on a frozen encoder


L2 = 0.03
BATCHES = [classification("train", index, torch.Generator().manual_seed(index)) for index in range(3)]


class Regression(Normed):
    """Two real targets, no bias, squares: the best head is a ridge regression's."""

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return 0.5 * (features @ head["weight"] - batch.targets).square().sum(1).mean()


def test_it_is_ridge_regression_on_the_encoders_features_in_evaluation_mode() -> None:
    problem = Regression()
    problem.pretrained.buffers["1.running_mean"].copy_(draw(20, 5))
    batches = [Batch(draw(30 + size, size, 4), draw(40 + size, size, 2)) for size in (7, 30)]  # each weighs the same
    head = finetune_head(problem, problem.pretrained, {"weight": draw(50, 5, 2)}, batches, l2=L2)["weight"]
    module, network = problem.module.eval(), {**problem.pretrained.encoder, **problem.pretrained.buffers}
    gram, moment = L2 * torch.eye(5, dtype=DTYPE), torch.zeros(5, 2, dtype=DTYPE)
    for batch in batches:
        z = functional_call(module, network, batch.inputs)
        gram = gram + z.T @ z / len(z) / 2
        moment = moment + z.T @ batch.targets / len(z) / 2
    torch.testing.assert_close(head, torch.linalg.solve(gram, moment), rtol=1e-9, atol=1e-10)


def test_a_second_call_gives_the_same_bits_and_nothing_that_it_is_given_changes() -> None:
    class Careless(Normed):
        """Its `encode` leaves the module in training mode, which updates BatchNorm's statistics."""

        def encode(self, encoder: Params, batch: Batch) -> Tensor:
            self.module.train()
            return functional_call(self.module, encoder, batch.inputs)

    for problem in (Normed(), Careless()):
        before = copy.deepcopy((problem.pretrained, problem.head))
        first = finetune_head(problem, problem.pretrained, problem.head, BATCHES)
        with torch.no_grad():
            second = finetune_head(problem, problem.pretrained, problem.head, (Batch(*each) for each in BATCHES))
        assert same(first, second)
        assert not any(value.requires_grad for value in first.values())
        assert same(before, (problem.pretrained, problem.head))
        for part in problem.pretrained:
            assert not any(value.requires_grad or value.grad is not None for value in part.values())


class Endless(Classifier):
    """An FT loss without a minimum."""

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return -head["bias"].square().sum()


@pytest.mark.parametrize("where", ["minibatch", "encoder", "head", "loss"])
def test_what_is_not_finite_is_an_error(where: str) -> None:
    problem = Endless() if where == "loss" else Classifier()
    inputs = BATCHES[0].inputs.clone()
    parts = {"minibatch": inputs, "encoder": problem.pretrained.encoder["weight"], "head": problem.head["weight"]}
    if where in parts:
        parts[where][0, 0] = torch.nan
    with pytest.raises(TrainingError, match=r"not finite|no.* minimum"):
        finetune_head(problem, problem.pretrained, problem.head, [BATCHES[0]._replace(inputs=inputs), BATCHES[1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batches": []}, "no minibatches"), ({"l2": 0.0}, "l2 is 0.0; legal"), ({"head": {}}, "head has no parameters")],
)
def test_no_minibatch_no_ridge_and_no_head_are_refused(change: dict[str, Any], message: str) -> None:
    problem = Classifier()
    with pytest.raises(ConfigError, match=message):
        finetune_head(problem, problem.pretrained, **({"batches": BATCHES, "head": problem.head} | change))
