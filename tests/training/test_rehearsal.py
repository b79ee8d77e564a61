"""Rehearsals: loops take a few steps, and what all of them would take is known."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from metapt.hypergrad import SGD, Unroll
from metapt.training.measure import Measured
from metapt.training.meta import MetaPretraining
from metapt.training.progress import seconds_left_out, steps
from metapt.training.rehearsal import Rehearsal, TooSlow, rehearsed
from metapt.training.settings import MetaSettings

from ..clock import Clock
from .problems import Classifier, Streams, classification


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all loops."""
    found = Clock()
    for module in ("rehearsal", "progress", "measure"):
        monkeypatch.setattr(f"metapt.training.{module}.time", found)
    return found


def test_without_a_rehearsal_all_steps_are_taken() -> None:
    assert list(steps(2, 6, kind=lambda step: step % 2)) == [2, 3, 4, 5]
    assert seconds_left_out() == 0


def test_a_few_steps_tell_what_all_take(clock: Clock) -> None:
    with rehearsed(Rehearsal(allowance=0.02)) as rehearsal:
        taken = []
        for step in steps(0, 1000, "PT"):
            clock.work(0.005)
            taken.append(step)
    assert taken == list(range(len(taken)))
    assert 2 <= len(taken) <= 5
    (loop,) = rehearsal.loops
    assert (loop.label, loop.taken, loop.left_out) == ("PT", len(taken), 1000 - len(taken))
    assert rehearsal.left_out == pytest.approx((1000 - len(taken)) * 0.005)


def test_the_first_step_of_a_loop_does_not_count_where_there_are_others(clock: Clock) -> None:
    with rehearsed(Rehearsal(allowance=0.2)) as rehearsal:
        for step in steps(0, 108):
            clock.work(0.1 if step == 0 else 0.002)
    assert rehearsal.left_out == pytest.approx(100 * 0.002)


def test_each_kind_of_step_is_seen(clock: Clock) -> None:
    """Slow steps from 90 on, and an observation after each tenth."""
    with rehearsed(Rehearsal(allowance=0.01)) as rehearsal:
        taken = []
        for step in steps(0, 100, kind=lambda step: (step < 90, (step + 1) % 10 == 0)):
            clock.work(0.002 if step < 90 else 0.02)
            if (step + 1) % 10 == 0:
                clock.work(0.03)
            taken.append(step)
    assert {(step < 90, (step + 1) % 10 == 0) for step in taken} == {
        (a, b) for a in (True, False) for b in (True, False)
    }
    in_all = 90 * 0.002 + 10 * 0.02 + 10 * 0.03
    done = sum((0.002 if step < 90 else 0.02) + 0.03 * ((step + 1) % 10 == 0) for step in taken)
    assert rehearsal.left_out + done == pytest.approx(in_all)


def test_loops_inside_loops_are_multiplied(clock: Clock) -> None:
    with rehearsed(Rehearsal(allowance=0.01)) as rehearsal, Measured("cpu") as measured:
        for _ in steps(0, 20):
            for _ in steps(0, 50):
                clock.work(0.003)
    assert clock.seconds + rehearsal.left_out == pytest.approx(20 * 50 * 0.003)
    assert measured.seconds == pytest.approx(20 * 50 * 0.003)


def test_a_loop_whose_steps_are_all_needed_ends_the_job(clock: Clock) -> None:
    """Of four seeds with three runs each, two runs are taken, and nothing after them."""
    done = []
    with rehearsed(Rehearsal(allowance=0.01)) as rehearsal:
        for seed in steps(0, 4, ends_rehearsal=True):
            clock.work(0.01)
            for number in steps(0, 3, ends_rehearsal=True):
                for _ in steps(0, 10):
                    clock.work(0.002)
                done.append((seed, number))
        done.append("tables")  # type: ignore[arg-type]
    assert done == [(0, 0), (0, 1)]
    assert clock.seconds + rehearsal.left_out == pytest.approx(4 * (0.01 + 3 * 10 * 0.002))
    with rehearsed(Rehearsal(allowance=10)):
        assert list(steps(0, 3, ends_rehearsal=True)) == [0, 1, 2]


@pytest.mark.parametrize(("limit", "seconds"), [(0.1, 0.1), (0.0, 0.02), (9.0, 20 * 0.02)])
def test_a_time_limit_ends_a_loop(clock: Clock, limit: float, seconds: float) -> None:
    with rehearsed(Rehearsal(allowance=0.01)) as rehearsal:
        for _ in steps(0, 20, time_limit=limit):
            clock.work(0.02)
    assert clock.seconds + rehearsal.left_out == pytest.approx(seconds)


def test_a_time_limit_lets_the_first_step_be_taken(clock: Clock) -> None:
    taken = []
    for step in steps(0, 9, time_limit=0.05):
        clock.work(0.02)
        taken.append(step)
    assert taken == [0, 1, 2]
    assert list(steps(0, 9, time_limit=0.0)) == [0]
    assert list(steps(3, 9, time_limit=0.0)) == []


def test_threads_add_up(clock: Clock) -> None:
    def run(_: int) -> None:
        for _ in steps(0, 100):
            clock.work(0.002)

    with rehearsed(Rehearsal(allowance=0.01)) as rehearsal, ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(4)))
    taken = sum(loop.taken for loop in rehearsal.loops)
    assert rehearsal.left_out == pytest.approx((400 - taken) * 0.002)


def test_a_step_that_is_too_slow(clock: Clock) -> None:
    """Steps of an outer loop, which hold those of an inner one, may take longer."""

    def nested(slowest: float) -> None:
        with rehearsed(Rehearsal(allowance=1, slowest=slowest)):
            for _ in steps(0, 3):
                for _ in steps(0, 3):
                    clock.work(0.03)

    nested(0.05)
    with pytest.raises(TooSlow):
        nested(0.02)


def test_meta_pretraining_sees_iterations_with_and_without_an_update() -> None:
    problem = Classifier()
    settings = MetaSettings(iterations=50, warmup=40, finetuning=Unroll(1, SGD(0.1)))
    loop = MetaPretraining(problem, Streams(classification), problem.pretrained, problem.meta, problem.head, settings)
    seen = []
    iterate = loop.iterate

    def watched() -> None:
        seen.append(loop.iteration)
        iterate()

    loop.iterate = watched  # type: ignore[method-assign]
    with rehearsed(Rehearsal()) as rehearsal:
        loop.run()
    assert min(seen) == 0
    assert {40, 41} <= set(seen)
    assert len(seen) <= 16
    assert sum(each.taken + each.left_out for each in rehearsal.loops) == 50
