"""Every arm pre-trains on small graphs, leaves its outputs, and resumes after an interruption to the same bits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from metapt.domains.ppi import config
from metapt.domains.ppi.arms import fixed_weights, meta_loop, pretrain
from metapt.domains.ppi.batches import PpiBatches
from metapt.domains.ppi.data.dataset import PpiDataset, held_out_tasks, splits
from metapt.domains.ppi.data.graphs import unpack
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, LabelledGraphs, encoder_of, task_weights
from metapt.domains.ppi.quantities import ONLINE, QUANTILES
from metapt.domains.ppi.settings import FOLDS
from metapt.errors import ConfigError
from metapt.hypergrad import Adam, FittedHead, Neumann, Pretrained, RidgeHead, Unroll
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.settings import MetaSettings
from metapt.twostage.pretraining import PretrainRun

from ..twostage.whole_runs import Stopped, equal, initial_weights, interrupted, the_same
from .small_arms import ARMS_HERE, LEARNED, setting_in
from .small_graphs import COARSE, FINE, TEST_SPECIES

PT, TRAIN, VALIDATION = 100, 68, 12  # graphs
STEPS = 12
LEARNERS = [name for name, arm in ARMS_HERE.items() if config.learns_weights(arm)]


Make = Callable[..., PpiSetting]


class Ran(NamedTuple):
    """A complete run, and the initial values of its trainer."""

    run: PretrainRun
    setting: PpiSetting
    starts: list[Pretrained]


@pytest.fixture(scope="module")
def ran(dataset: PpiDataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Return a function that runs an arm with seed 0 without interruption, once per arm."""

    @functools.cache
    def run(name: str) -> Ran:
        setting = setting_in(tmp_path_factory.mktemp(name), dataset)
        with initial_weights() as starts:
            return Ran(pretrain(ARMS_HERE[name], setting), setting, starts)

    return run


@pytest.mark.parametrize("name", ARMS_HERE)
def test_every_arm_runs_and_leaves_what_it_promises(ran: Callable[[str], Ran], name: str) -> None:
    run, setting, _ = ran(name)
    start = setting.initial()
    for part, before in zip(run.pretrained, start, strict=True):
        assert part.keys() == before.keys()
        for key, value in part.items():
            assert value.isfinite().all()
            assert value.shape == before[key].shape
            assert not value.requires_grad
    assert {"PT wall time (s)", "PT peak memory (GB)"} <= run.numbers.keys()
    assert all(isinstance(value, float | int) for value in run.numbers.values())
    assert (run.meta == {}) == (name not in LEARNERS)
    if name == "no_pt":
        assert all(equal(a, b) for a, b in zip(run.pretrained, start, strict=True))
        assert not run.checkpoints
        return
    assert not equal(run.pretrained.encoder, start.encoder)
    passes = 2 if name.startswith("cotrain") else 1  # forward passes per step
    assert setting.steps == STEPS
    assert run.pretrained.buffers["layers.1.norm.num_batches_tracked"] == STEPS * passes
    assert run.numbers["PT time per step (s)"] > 0
    assert [checkpoint.path.exists() for checkpoint in run.checkpoints] == [True]


@pytest.mark.parametrize("name", LEARNERS)
def test_learned_weights_move_and_their_way_is_told(ran: Callable[[str], Ran], name: str) -> None:
    run = ran(name).run
    assert run.meta.keys() == {WEIGHTS}
    assert run.meta[WEIGHTS].shape == (COARSE,)
    assert (run.meta[WEIGHTS] != 0).all()
    steps = sorted({row["step"] for row in run.series})
    assert steps == [2, 4, 6]
    last = {row["name"]: row["value"] for row in run.series if row["step"] == 6}
    for row, share in QUANTILES.items():
        assert last[row] == pytest.approx(float(task_weights(run.meta).quantile(share)), rel=1e-6)
    assert {"moved", "swing", "hypergradient"} <= run.numbers.keys()


@pytest.mark.parametrize("name", ARMS_HERE)
def test_the_ft_head_that_pt_trains_is_tested_on_the_way(ran: Callable[[str], Ran], make: Make, name: str) -> None:
    run = ran(name).run
    trains_head = name.startswith("cotrain") or name in ("meta", "meta-identity", "meta-released")
    for figure in ONLINE.values():
        values = [row["value"] for row in run.series if row["name"] == figure]
        assert len(values) == (3 if trains_head else 0)
        assert (figure in run.numbers) is trains_head
        assert not trains_head or values[-1] == pytest.approx(run.numbers[figure])
    if name == "cotrain":
        quiet = pretrain(ARMS_HERE[name], make(online_evaluations=0))
        assert not quiet.series
        assert set(ONLINE.values()) <= quiet.numbers.keys()


def test_online_aurocs_are_of_validation_graphs_and_of_the_hard_half(make: Make) -> None:
    setting = make()
    start, head = setting.initial(), setting.initial_head()
    network, dataset = {**start.encoder, **start.buffers}, setting.dataset
    parts = splits(dataset.graphs, [TEST_SPECIES])
    expected = setting.online(network, head)
    of = {"train": parts.train, "easy": parts.easy, ONLINE["validation"]: parts.validation, ONLINE["test"]: parts.hard}
    for name, part in of.items():
        bits = dataset.fine_bits.clone()
        bits[torch.from_numpy(part)] ^= 255
        changed = dataclasses.replace(setting, dataset=dataclasses.replace(dataset, fine_bits=bits))
        found = changed.online(network, head)
        assert {key for key, value in found.items() if not torch.equal(value, expected[key])} == {name} & set(expected)


def test_all_arms_of_a_seed_start_from_the_same_weights(ran: Callable[[str], Ran], make: Make) -> None:
    expected, head = make().initial(), make().initial_head()
    for name in ARMS_HERE:
        run, _, starts = ran(name)
        assert len(starts) <= 1
        for start in starts or [run.pretrained]:
            assert equal(encoder_of(start.encoder), expected.encoder), name
            assert equal(start.buffers, expected.buffers)
            if name.startswith("cotrain"):
                assert equal({k: start.encoder[f"pretrain_head.{k}"] for k in expected.head}, expected.head)
                assert equal({k: start.encoder[f"finetune_head.{k}"] for k in head}, head)
            else:
                assert equal(start.head, expected.head)
    assert not equal(make(seed=1).initial().encoder, expected.encoder)
    assert not equal(make(seed=1).initial_head(), head)


def test_all_arms_of_a_seed_see_the_same_pt_minibatches_and_masks_to_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[LabelledGraphs] = []
    draw = PpiBatches.pretrain

    def spied(self: PpiBatches) -> LabelledGraphs:
        drawn.append(draw(self))
        return drawn[-1]

    monkeypatch.setattr(PpiBatches, "pretrain", spied)
    seen: dict[str, list[LabelledGraphs]] = {}
    for name, arm in ARMS_HERE.items():
        if name != "no_pt" and not getattr(arm, "reuse_gradient", False):
            for checkpoint in pretrain(arm, make()).checkpoints:
                checkpoint.remove()
            seen[name], drawn = drawn, []
    expected = seen.pop("graph_supervised")
    assert len(expected) == STEPS
    for name, batches in seen.items():
        assert len(batches) == STEPS, name
        for ours, theirs in zip(expected, batches, strict=True):
            pairs = zip((*ours.graphs, *ours[1:]), (*theirs.graphs, *theirs[1:]), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), name


def test_an_arm_with_equal_weights_is_the_one_without(ran: Callable[[str], Ran], make: Make) -> None:
    ours = pretrain(ARMS_HERE["meta-frozen"], make(learned=torch.zeros(COARSE)))
    assert equal(ours.pretrained.encoder, ran("graph_supervised").run.pretrained.encoder)
    assert not equal(ran("meta-frozen").run.pretrained.encoder, ours.pretrained.encoder)


def test_fixed_weights_are_those_that_another_arm_has_learned(make: Make) -> None:
    def weights(name: str, seed: int = 0) -> torch.Tensor:
        return fixed_weights(make(seed=seed), ARMS_HERE[name])[WEIGHTS]  # type: ignore[arg-type]

    assert torch.equal(weights("graph_supervised"), torch.zeros(COARSE))
    assert torch.equal(weights("meta-frozen"), LEARNED)
    permuted = weights("meta-permuted")
    assert torch.equal(permuted.sort().values, LEARNED.sort().values)
    assert torch.equal(permuted, weights("meta-permuted"))
    assert len({tuple(each.tolist()) for each in (permuted, weights("meta-permuted", 1), LEARNED)}) == 3
    order = LEARNED.argsort(descending=True)
    for name, kept in (("meta-top", order[:2]), ("meta-bottom", order[-2:])):  # a quarter of ten
        used = task_weights({WEIGHTS: weights(name)})
        assert (used[kept] == 1).all()
        assert float(used.sum()) == pytest.approx(2, abs=1e-9)
    related = task_weights({WEIGHTS: weights("related_only")})
    assert (float(related[3]), float(related.sum())) == (1, pytest.approx(1, abs=1e-9)), "an FT task implies task 3"


def test_a_task_that_is_left_out_has_no_say(make: Make) -> None:
    def moved(name: str) -> float:
        """Return how far other labels of all but the two tasks of highest weight move the encoder."""
        ends = []
        for flipped in (LEARNED.argsort(descending=True)[2:].tolist(), []):
            setting = make()
            labels = setting.dataset.coarse_bits.clone()
            for task in flipped:
                labels[:, task // 8] ^= 1 << task % 8
            run = pretrain(
                ARMS_HERE[name],
                dataclasses.replace(setting, dataset=dataclasses.replace(setting.dataset, coarse_bits=labels)),
            )
            run.checkpoints[0].remove()
            ends.append(torch.cat([value.flatten() for value in run.pretrained.encoder.values()]))
        return float((ends[0] - ends[1]).abs().max())

    assert 5 * moved("meta-top") < moved("graph_supervised")


def test_pt_sees_train_validation_and_easy_graphs(make: Make) -> None:
    setting = make()
    parts = splits(setting.dataset.graphs, [TEST_SPECIES])
    assert sorted(setting.graphs) == sorted([*parts.train, *parts.validation, *parts.easy])
    assert len(setting.graphs) == PT
    assert [len(part) for part in setting.finetune] == [TRAIN, VALIDATION]
    assert all(map(np.array_equal, setting.finetune, (parts.train, parts.validation)))
    assert setting.tasks is None
    assert setting.coarse() is None
    assert setting.finetune_tasks == FINE


def test_half_of_the_data_is_half_of_each_set(make: Make) -> None:
    settings = [make(), *(make("half_data", seed) for seed in (0, 0, 1))]
    whole, half, again, other = (setting.finetune for setting in settings)
    assert [len(part) for part in half] == [TRAIN // 2, VALIDATION // 2]
    for part, everything in zip(half, whole, strict=True):
        assert set(part.tolist()) < set(everything.tolist())
        assert len(set(part.tolist())) == len(part)
    assert all(map(np.array_equal, half, again))
    assert not np.array_equal(half[0], other[0])
    assert np.array_equal(settings[1].graphs, settings[0].graphs)
    sets = settings[1].sets(ARMS_HERE["meta"])  # type: ignore[arg-type]
    assert [sorted(sets[name][0]) for name in ("train", "validation")] == [sorted(part) for part in half]


def test_what_is_held_out_is_not_seen(make: Make) -> None:
    for part in range(FOLDS):
        setting = make(f"held_out_{part}")
        assert setting.tasks is not None
        held_out = set(held_out_tasks(FINE, part))
        assert set(setting.tasks.tolist()) == set(range(FINE)) - held_out
        assert setting.finetune_tasks == FINE - len(held_out)
        assert setting.initial_head()["bias"].shape == (FINE - len(held_out),)
        assert setting.batches(PpiBatches).train().labels.shape[1] == FINE - len(held_out)


def test_permuted_tasks_keep_their_positives_and_lose_their_graphs(make: Make) -> None:
    setting = make("permuted_50")
    graphs, hard = setting.graphs, splits(setting.dataset.graphs, [TEST_SPECIES]).hard
    chosen = setting.permuted()
    assert len(set(chosen.tolist())) == COARSE // 2
    bits = setting.coarse()
    assert bits is not None
    before, after = (unpack(each, COARSE) for each in (setting.dataset.graphs.coarse, bits.numpy()))
    others = np.setdiff1d(np.arange(COARSE), chosen)
    assert np.array_equal(after[:, others], before[:, others])
    assert np.array_equal(after[hard], before[hard])
    assert np.array_equal(after[graphs].sum(0), before[graphs].sum(0))
    assert (after[graphs][:, chosen] != before[graphs][:, chosen]).any(0).all()
    moved = after[graphs][:, chosen]
    assert len(np.unique(moved.T, axis=0)) == len(chosen)  # each task has its own permutation
    found, plain = (each.batches(PpiBatches).pretrain() for each in (setting, make()))
    differ = np.flatnonzero((found.labels != plain.labels).any(0).numpy())
    assert len(differ) > 0
    assert set(differ) <= set(chosen.tolist())


def test_centres_are_the_released_ones_where_they_are_not_offset(make: Make) -> None:
    released, right = (make(offset_centres=offset).batches(PpiBatches).pretrain() for offset in (False, True))
    assert released.graphs.centre.max() < 7
    starts = right.graphs.sizes.cumsum(0) - right.graphs.sizes
    assert torch.equal(right.graphs.centre, released.graphs.centre + starts)


META: dict[str, Any] = {"unroll": "ridge", "pretrain_steps": 2, "warmup_epochs": 0.5}


def parts_of_updates(setting: PpiSetting, arm: config.PpiMeta, updates: int) -> list[list[list[int]]]:
    """Return the numbers of the graphs in each part of each meta-update."""
    data = setting.dataset
    numbers = torch.arange(len(data.graphs), dtype=torch.float32).repeat_interleave(data.nodes.diff()).unsqueeze(1)
    data = dataclasses.replace(data, edge_sums=torch.cat([numbers, data.edge_sums[:, 1:]], 1))
    loop = meta_loop(dataclasses.replace(setting, dataset=data), arm)

    def seen(batch: Any) -> list[int]:
        return [int(part[0, 0]) for part in batch.graphs.edge_sums.split(batch.graphs.sizes.tolist())]

    count = loop.settings.finetuning.minibatches
    return [
        [seen(loop.batches.validation()), *(seen(loop.batches.train()) for _ in range(count))] for _ in range(updates)
    ]


@pytest.mark.parametrize("folds", [None, 2, 7])
@pytest.mark.parametrize("size", [None, 8, 30])
def test_a_cross_fitted_head_sees_disjoint_folds_in_every_meta_update(
    make: Make, folds: int | None, size: int | None
) -> None:
    """Without folds, a head is fitted to training graphs and evaluated on validation graphs."""
    setting = make()
    train, validation = (part.tolist() for part in setting.finetune)
    for parts in parts_of_updates(setting, config.PpiMeta(**META, folds=folds, batch_size=size), 6):
        flat = [number for part in parts for number in part]
        assert len(set(flat)) == len(flat)
        if folds is None:
            assert [len(part) for part in parts] == [min(size or VALIDATION, VALIDATION), size or TRAIN]
            assert set(parts[0]) <= set(validation)
            assert set(parts[1]) <= set(train)
            continue
        least = (TRAIN + VALIDATION) // folds
        assert len(parts) == folds
        assert set(flat) <= {*train, *validation}
        assert min(map(len, parts)) == (least if size is None else min(size, least))
        assert size is not None or len(flat) == TRAIN + VALIDATION


def test_more_folds_than_ft_graphs_are_refused(make: Make) -> None:
    count = TRAIN + VALIDATION
    assert make().sets(config.PpiMeta(**META, folds=count))
    with pytest.raises(ConfigError, match=f"folds is {count + 1}, and there are {count} FT graphs; legal: at most as"):
        make().sets(config.PpiMeta(**META, folds=count + 1))


def test_every_option_of_an_arm_reaches_its_loop(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[MetaSettings] = []

    def stopped(self: MetaPretraining, *arguments: Any, **options: Any) -> None:
        begun.append(self.settings)
        raise Stopped

    monkeypatch.setattr(MetaPretraining, "run", stopped)
    same: dict[str, Any] = {"curvature": "gauss_newton", "accumulate": 3, "clip_norm": 0.7, "normalise": True}
    same |= {"average_decay": 0.25, "explosion_factor": 50, "max_skipped": 3, "reuse_gradient": True}
    same |= {"head_steps_between_updates": 2}
    learned = {"pretrain_lr": 2e-4, "meta_lr": 0.3, "pretrain_steps": 3, "warmup_epochs": 1.5}
    inverse, momentum = config.NeumannSeries(terms=3), {"momentum": 0.5}
    arms = [
        config.LearnedWeights(method="learned_weights", neumann_terms=4, **learned),
        config.PpiMeta(
            **same, **learned, inverse=inverse, unroll_steps=2, finetune_lr=0.02, meta_optimizer="SGD",
            meta_settings=momentum,
        ),
    ]  # fmt: skip
    for arm in arms:
        with pytest.raises(Stopped):
            pretrain(arm, make())
    adam = OptimizerSpec("Adam", {"lr": 2e-4, "fused": True})
    length: dict[str, Any] = {"iterations": 4, "pretrain_steps": 3, "warmup": 3, "pretrain_optimizer": adam}
    slow, fast = OptimizerSpec("SGD", {"lr": 0.3, "momentum": 0.5}), OptimizerSpec("Adam", {"lr": 0.3})
    assert begun == [
        MetaSettings(**length, inverse=Neumann(4, 2e-4), finetuning=Unroll(0), meta_optimizer=fast),
        MetaSettings(**length, **same, inverse=Neumann(3, 2e-4), finetuning=Unroll(2, Adam(0.02)), meta_optimizer=slow),
    ]
    folds = {"l2": 0.5, "folds": 4, "batch_size": None}
    for changes, solver in (
        ({"unroll": "fitted", "l2": 0.5}, FittedHead(0.5)),
        ({"unroll": "fitted"} | folds, FittedHead(0.5, cross_fit=True, minibatches=3)),
        ({"unroll": "ridge"} | folds, RidgeHead(0.5, cross_fit=True, minibatches=3)),
    ):
        loop = meta_loop(make(), config.PpiMeta(pretrain_steps=2, warmup_epochs=0.5, **changes))
        assert loop.settings.finetuning == solver


@pytest.mark.parametrize("name", ["graph_supervised", "cotrain", "cotrain_pcgrad"])
def test_the_learning_rate_and_the_gradients_are_the_arms(
    make: Make, name: str, ran: Callable[[str], Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[OptimizerSpec] = []
    init = Pretrainer.__init__

    def spied(self: Pretrainer, problem: Any, batches: Any, pretrained: Pretrained, optimizer: OptimizerSpec) -> None:
        specs.append(optimizer)
        init(self, problem, batches, pretrained, optimizer)

    monkeypatch.setattr(Pretrainer, "__init__", spied)
    pretrain(ARMS_HERE[name].model_copy(update={"pretrain_lr": 0.02}), make(epochs=1))
    assert specs == [OptimizerSpec("Adam", {"lr": 0.02, "fused": True})]
    cotrained = [ran(each).run.pretrained.encoder for each in ("cotrain", "cotrain_pcgrad")]
    assert not equal(*cotrained)


def test_warm_up_is_in_epochs(make: Make) -> None:
    def loop(steps: int, epochs: float) -> MetaSettings:
        return meta_loop(make(epochs=5), config.PpiMeta(pretrain_steps=steps, warmup_epochs=epochs)).settings

    # Of 30 steps, six in each epoch.
    found = [loop(4, 0), loop(4, 1), loop(4, 2.5), loop(30, 0)]
    expected = [(7, 2, 0), (7, 2, 2), (7, 2, 4), (1, 0, 0)]
    assert [(each.iterations, each.remainder, each.warmup) for each in found] == expected
    with pytest.raises(ConfigError, match=r"warmup_epochs: .* so that the task weights would never be learned"):
        loop(4, 5)
    with pytest.raises(ConfigError, match=r"pretrain_steps is 31, which is more than the 30 steps .* at most 30"):
        loop(31, 0)


@pytest.mark.parametrize(
    "name", [name for name in ARMS_HERE if name not in ("no_pt", "meta-frozen", "meta-top", "meta-bottom")]
)
def test_an_interrupted_run_ends_in_the_same_bits(ran: Callable[[str], Ran], make: Make, name: str) -> None:
    whole = ran(name).run
    done = interrupted(lambda checkpoint: pretrain(ARMS_HERE[name], make(checkpoint=checkpoint)))
    assert the_same(whole, done)
    measured = [name for name in whole.numbers if "time" in name or "memory" in name]
    assert {**whole.numbers, **dict.fromkeys(measured)} == {**done.numbers, **dict.fromkeys(measured)}
    for checkpoint in done.checkpoints:
        checkpoint.remove()
    assert not list(checkpoint.path.parent.glob("*"))


@pytest.mark.parametrize("name", ["graph_supervised", "cotrain", "meta", "meta-stable"])
def test_every_method_trains_in_bfloat16(make: Make, ran: Callable[[str], Ran], name: str) -> None:
    lower, plain = pretrain(ARMS_HERE[name], make(precision="bfloat16")), ran(name).run
    moved = max(
        float((a - b).abs().max()) for a, b in zip(lower.pretrained.vector(), plain.pretrained.vector(), strict=True)
    )
    assert 0 < moved < 2 * STEPS * 1e-3  # Adam's steps are at most 1e-3
    assert all(value.dtype is torch.float32 for value in lower.pretrained.vector())


@pytest.mark.parametrize("name", ["meta", "meta-stable"])
def test_a_run_that_computes_anew_ends_alike(make: Make, ran: Callable[[str], Ran], name: str) -> None:
    again, once = pretrain(ARMS_HERE[name].model_copy(update={"recompute": True}), make()), ran(name).run
    torch.testing.assert_close(again.meta, once.meta, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again.pretrained.encoder, once.pretrained.encoder, rtol=1e-3, atol=1e-4)
