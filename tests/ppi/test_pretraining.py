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
from metapt.domains.ppi.problem import WEIGHTS, LabelledGraphs, encoder_of, initial_meta, task_weights
from metapt.domains.ppi.quantities import ONLINE, QUANTILES
from metapt.domains.ppi.settings import FOLDS
from metapt.errors import ConfigError, DataError, TrainingError
from metapt.hypergrad import Adam, FittedHead, Neumann, Params, Pretrained, RidgeHead, Unroll
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
    assert all(row.keys() == {"replicate", "step", "name", "value"} and row["replicate"] == 0 for row in run.series)
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
def test_the_ft_head_that_pt_trains_is_tested_on_the_way(ran: Callable[[str], Ran], name: str) -> None:
    run = ran(name).run
    trains_head = name.startswith("cotrain") or name in ("meta", "meta-identity", "meta-released")
    for figure in ONLINE.values():
        values = [row["value"] for row in run.series if row["name"] == figure]
        assert len(values) == (3 if trains_head else 0)
        assert (figure in run.numbers) is trains_head
        if trains_head:
            assert values[-1] == pytest.approx(run.numbers[figure])
            assert all(0 <= value <= 100 for value in values)


Make = Callable[..., PpiSetting]


def test_online_aurocs_are_of_validation_graphs_and_of_the_hard_half(make: Make) -> None:
    setting = make()
    start, head = setting.initial(), setting.initial_head()
    network = {**start.encoder, **start.buffers}
    parts = splits(setting.dataset.graphs, [TEST_SPECIES])
    expected = setting.online(network, head)
    for name, part in (
        ("train", parts.train),
        (ONLINE["validation"], parts.validation),
        ("easy", parts.easy),
        (ONLINE["test"], parts.hard),
    ):
        bits = setting.dataset.fine_bits.clone()
        bits[torch.from_numpy(part)] ^= 255
        found = dataclasses.replace(setting, dataset=dataclasses.replace(setting.dataset, fine_bits=bits)).online(
            network, head
        )
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
        if not isinstance(arm, config.WithoutPretraining) and not (
            isinstance(arm, config.PpiMeta) and arm.reuse_gradient
        ):
            setting = make()
            setting.checkpoint("").remove()
            for checkpoint in pretrain(arm, setting).checkpoints:
                checkpoint.remove()
            seen[name], drawn = drawn, []
    expected = seen.pop("graph_supervised")
    assert len(expected) == STEPS
    for name, batches in seen.items():
        assert len(batches) == STEPS, name
        for ours, theirs in zip(expected, batches, strict=True):
            assert all(
                map(torch.equal, (*ours.graphs, ours.labels, ours.keep), (*theirs.graphs, theirs.labels, theirs.keep))
            ), name


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
    orders = [tuple(weights("meta-permuted", seed).tolist()) for seed in range(4)]
    assert len({*orders, tuple(LEARNED.tolist())}) == 5
    order = LEARNED.argsort(descending=True)
    for name, kept in (("meta-top", order[:2]), ("meta-bottom", order[-2:])):  # a quarter of ten
        used = task_weights({WEIGHTS: weights(name)})
        assert (used[kept] == 1).all()
        assert float(used.sum()) == pytest.approx(2, abs=1e-9)


def test_related_tasks_are_those_that_an_ft_task_implies(make: Make) -> None:
    used = task_weights(fixed_weights(make(), ARMS_HERE["related_only"]))  # type: ignore[arg-type]
    assert used[3] == 1
    assert float(used.sum()) == pytest.approx(1, abs=1e-9)


def test_a_task_that_is_left_out_has_no_say(make: Make) -> None:
    order = LEARNED.argsort(descending=True)

    def encoder(name: str, flip: bool) -> Params:
        setting = make()
        if flip:
            labels = setting.dataset.coarse_bits.clone()
            for task in order[2:].tolist():
                labels[:, task // 8] ^= 1 << task % 8
            setting = dataclasses.replace(setting, dataset=dataclasses.replace(setting.dataset, coarse_bits=labels))
        setting.checkpoint("").remove()
        return pretrain(ARMS_HERE[name], setting).pretrained.encoder

    torch.testing.assert_close(encoder("meta-top", True), encoder("meta-top", False), rtol=1e-2, atol=1e-3)
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(
            encoder("graph_supervised", True), encoder("graph_supervised", False), rtol=1e-2, atol=1e-3
        )


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
    whole, half, again, other = (
        make(name, seed).finetune for name, seed in (("full_access", 0), *[("half_data", s) for s in (0, 0, 1)])
    )
    assert [len(part) for part in half] == [TRAIN // 2, VALIDATION // 2]
    for part, everything in zip(half, whole, strict=True):
        assert set(part.tolist()) < set(everything.tolist())
        assert len(set(part.tolist())) == len(part)
    assert all(map(np.array_equal, half, again))
    assert not np.array_equal(half[0], other[0])
    assert np.array_equal(make("half_data").graphs, make().graphs)
    sets = make("half_data").sets(ARMS_HERE["meta"])  # type: ignore[arg-type]
    assert sorted(sets["train"][0]) == sorted(half[0])
    assert sorted(sets["validation"][0]) == sorted(half[1])


@pytest.mark.parametrize("count", [4, 5, 10, 40])
def test_held_out_parts_are_a_partition_of_the_ft_tasks(count: int) -> None:
    parts = [held_out_tasks(count, part) for part in range(FOLDS)]
    assert [task for part in parts for task in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_is_held_out_is_not_seen(make: Make) -> None:
    for part in range(FOLDS):
        setting = make(f"held_out_{part}")
        assert setting.tasks is not None
        held_out = set(held_out_tasks(FINE, part))
        assert set(setting.tasks.tolist()) == set(range(FINE)) - held_out
        assert setting.finetune_tasks == FINE - len(held_out)
        assert setting.initial_head()["bias"].shape == (FINE - len(held_out),)
        assert setting.batches(PpiBatches).train().labels.shape[1] == FINE - len(held_out)


@pytest.mark.parametrize("name", ["cotrain", "cotrain_learned_weights", "meta", "meta-stable"])
@pytest.mark.parametrize("setting", ["half_data", "held_out_1", "permuted_50"])
def test_arms_that_learn_from_ft_data_run_in_every_setting(
    ran: Callable[[str], Ran], make: Make, name: str, setting: str
) -> None:
    run = pretrain(ARMS_HERE[name], make(setting, epochs=1, online_evaluations=1))
    assert run.pretrained.head["bias"].shape == (COARSE,)
    assert not equal(run.pretrained.encoder, make().initial().encoder)
    assert all(value.isfinite().all() for part in (run.pretrained.encoder, run.meta) for value in part.values())


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


def test_pt_trains_on_the_permuted_labels(make: Make) -> None:
    ours, plain = make("permuted_50"), make()
    chosen = ours.permuted()
    for found, original in [(ours.batches(PpiBatches).pretrain(), plain.batches(PpiBatches).pretrain())]:
        differ = (found.labels != original.labels).any(0).numpy()
        assert set(np.flatnonzero(differ)) <= set(chosen.tolist())
        assert differ.any()
        assert all(map(torch.equal, found.graphs, original.graphs))


def test_centres_are_the_released_ones_where_they_are_not_offset(make: Make) -> None:
    released, right = (make(offset_centres=offset).batches(PpiBatches).pretrain() for offset in (False, True))
    assert released.graphs.centre.max() < 7
    starts = right.graphs.sizes.cumsum(0) - right.graphs.sizes
    assert torch.equal(right.graphs.centre, released.graphs.centre + starts)


META: dict[str, Any] = {"unroll": "ridge", "pretrain_steps": 2, "warmup_epochs": 0.5}


def parts_of_updates(setting: PpiSetting, arm: config.PpiMeta, updates: int) -> list[list[list[int]]]:
    """Return the numbers of the graphs in each part of each meta-update."""
    numbers = torch.arange(len(setting.dataset.graphs), dtype=torch.float32).repeat_interleave(
        setting.dataset.nodes.diff()
    )
    edge_sums = torch.cat([numbers.unsqueeze(1), setting.dataset.edge_sums[:, 1:]], 1)
    loop = meta_loop(
        dataclasses.replace(setting, dataset=dataclasses.replace(setting.dataset, edge_sums=edge_sums)), arm
    )

    def seen(batch: Any) -> list[int]:
        return [int(part[0, 0]) for part in batch.graphs.edge_sums.split(batch.graphs.sizes.tolist())]

    count = loop.settings.finetuning.minibatches
    return [
        [seen(loop.batches.validation()), *(seen(loop.batches.train()) for _ in range(count))] for _ in range(updates)
    ]


@pytest.mark.parametrize("folds", [2, 3, 5, 7])
@pytest.mark.parametrize("size", [None, 8, 30])
def test_a_cross_fitted_head_sees_disjoint_folds_in_every_meta_update(make: Make, folds: int, size: int | None) -> None:
    setting = make()
    both = sorted(np.concatenate(setting.finetune).tolist())
    for parts in parts_of_updates(setting, config.PpiMeta(**META, folds=folds, batch_size=size), 6):
        flat = [number for part in parts for number in part]
        assert len(parts) == folds
        assert len(set(flat)) == len(flat)
        assert set(flat) <= set(both)
        if size is None:
            assert sorted(flat) == both
        least = len(both) // folds if size is None else min(size, len(both) // folds)
        assert min(map(len, parts)) == least


def test_more_folds_than_ft_graphs_are_refused(make: Make) -> None:
    count = TRAIN + VALIDATION
    assert make().sets(config.PpiMeta(**META, folds=count))
    with pytest.raises(ConfigError, match=f"folds is {count + 1}, and there are {count} FT graphs; legal: at most as"):
        make().sets(config.PpiMeta(**META, folds=count + 1))


def test_no_ft_head_is_tested_on_the_way_if_the_config_says_so(make: Make) -> None:
    setting = make()
    quiet = dataclasses.replace(setting, pretrain=setting.pretrain.model_copy(update={"online_evaluations": 0}))
    run = pretrain(ARMS_HERE["cotrain"], quiet)
    assert not run.series
    assert set(ONLINE.values()) <= run.numbers.keys()


def test_a_head_that_is_trained_between_updates_alone_is_tested_on_the_way(make: Make) -> None:
    arm = config.PpiMeta(pretrain_steps=2, warmup_epochs=0.5, unroll_steps=0, head_steps_between_updates=1)
    assert set(ONLINE.values()) <= {row["name"] for row in pretrain(arm, make()).series}


def test_without_folds_a_head_is_fit_on_train_and_evaluated_on_validation(make: Make) -> None:
    setting = make()
    train, validation = (set(part.tolist()) for part in setting.finetune)
    for size in (None, 8):
        for held_out, *rest in parts_of_updates(setting, config.PpiMeta(**META, batch_size=size), 3):
            assert len(rest) == 1
            assert set(rest[0]) <= train
            assert set(held_out) <= validation
            assert [len(rest[0]), len(held_out)] == ([TRAIN, VALIDATION] if size is None else [8, 8])


def test_the_ft_solver_is_the_configs(make: Make) -> None:
    def solver(**changes: Any) -> Any:
        return meta_loop(make(), config.PpiMeta(pretrain_steps=2, warmup_epochs=0.5, **changes)).settings.finetuning

    assert solver(unroll_steps=3, finetune_lr=0.02) == Unroll(3, Adam(0.02))
    assert solver(unroll="fitted", l2=0.5) == FittedHead(0.5)
    assert solver(unroll="fitted", l2=0.5, folds=4, batch_size=None) == FittedHead(0.5, cross_fit=True, minibatches=3)
    assert solver(unroll="ridge", l2=0.5, folds=4, batch_size=None) == RidgeHead(0.5, cross_fit=True, minibatches=3)


def test_every_option_of_a_meta_arm_reaches_its_loop(make: Make) -> None:
    arm = config.PpiMeta(
        pretrain_lr=2e-4,
        pretrain_steps=2,
        warmup_epochs=0.5,
        inverse=config.NeumannSeries(terms=3),
        curvature="gauss_newton",
        unroll_steps=2,
        head_steps_between_updates=2,
        finetune_lr=0.02,
        meta_lr=0.3,
        meta_optimizer="SGD",
        meta_settings={"momentum": 0.5},
        accumulate=3,
        clip_norm=0.7,
        normalise=True,
        average_decay=0.25,
        explosion_factor=50,
        max_skipped=3,
        reuse_gradient=True,
    )
    assert meta_loop(make(), arm).settings == MetaSettings(
        iterations=6,
        pretrain_steps=2,
        warmup=2,
        inverse=Neumann(3, 2e-4),
        finetuning=Unroll(2, Adam(0.02)),
        curvature="gauss_newton",
        pretrain_optimizer=OptimizerSpec("Adam", {"lr": 2e-4, "fused": True}),
        meta_optimizer=OptimizerSpec("SGD", {"lr": 0.3, "momentum": 0.5}),
        head_steps_between_updates=2,
        accumulate=3,
        clip_norm=0.7,
        normalise=True,
        average_decay=0.25,
        explosion_factor=50,
        max_skipped=3,
        reuse_gradient=True,
    )


def test_every_option_of_learned_weights_reaches_its_loop(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[MetaSettings] = []

    def stopped(self: MetaPretraining, *arguments: Any, **options: Any) -> None:
        begun.append(self.settings)
        raise Stopped

    monkeypatch.setattr(MetaPretraining, "run", stopped)
    arm = config.LearnedWeights(
        method="learned_weights", pretrain_lr=2e-4, meta_lr=0.3, pretrain_steps=3, warmup_epochs=1.5, neumann_terms=4
    )
    with pytest.raises(Stopped):
        pretrain(arm, make())
    assert begun == [
        MetaSettings(
            iterations=4,
            pretrain_steps=3,
            warmup=3,
            inverse=Neumann(4, 2e-4),
            finetuning=Unroll(0),
            pretrain_optimizer=OptimizerSpec("Adam", {"lr": 2e-4, "fused": True}),
            meta_optimizer=OptimizerSpec("Adam", {"lr": 0.3}),
        )
    ]


@pytest.mark.parametrize("name", ["graph_supervised", "cotrain", "cotrain_pcgrad"])
def test_the_learning_rate_and_the_gradients_are_the_arms(
    make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = ARMS_HERE[name].model_copy(update={"pretrain_lr": 0.02})
    specs: list[OptimizerSpec] = []
    init = Pretrainer.__init__

    def spied(self: Pretrainer, problem: Any, batches: Any, pretrained: Pretrained, optimizer: OptimizerSpec) -> None:
        specs.append(optimizer)
        init(self, problem, batches, pretrained, optimizer)

    monkeypatch.setattr(Pretrainer, "__init__", spied)
    run = pretrain(arm, make(epochs=1))
    assert specs == [OptimizerSpec("Adam", {"lr": 0.02, "fused": True})]
    if name == "cotrain_pcgrad":
        alternate = ARMS_HERE["cotrain"].model_copy(update={"pretrain_lr": 0.02})
        setting = make(epochs=1)
        setting.checkpoint("").remove()
        assert not equal(run.pretrained.encoder, pretrain(alternate, setting).pretrained.encoder)


def test_warm_up_is_in_epochs(make: Make) -> None:
    loops = [
        meta_loop(make(epochs=5), config.PpiMeta(pretrain_steps=4, warmup_epochs=epochs)) for epochs in (0, 1, 2.5)
    ]
    assert [loop.settings.warmup for loop in loops] == [0, 2, 4]  # of six steps each, four steps an iteration
    assert [loop.settings.iterations for loop in loops] == [7] * 3
    with pytest.raises(ConfigError, match=r"warmup_epochs: .* so that the task weights would never be learned"):
        meta_loop(make(epochs=5), config.PpiMeta(pretrain_steps=4, warmup_epochs=5))


def test_a_pt_run_that_is_shorter_than_an_iteration_is_refused(make: Make) -> None:
    longest = meta_loop(make(epochs=5), config.PpiMeta(pretrain_steps=30, warmup_epochs=0)).settings
    assert (longest.iterations, longest.remainder) == (1, 0)
    with pytest.raises(ConfigError, match=r"pretrain_steps is 31, which is more than the 30 steps .* at most 30"):
        meta_loop(make(epochs=5), config.PpiMeta(pretrain_steps=31, warmup_epochs=0))


@pytest.mark.parametrize("name", ["graph_supervised", "cotrain", "cotrain_pcgrad"])
def test_pt_that_diverges_is_an_error(make: Make, name: str) -> None:
    setting = make()
    broken = dataclasses.replace(setting.dataset, edge_sums=setting.dataset.edge_sums * torch.nan)
    with pytest.raises((TrainingError, DataError), match=r"the PT loss at step|no task"):
        pretrain(ARMS_HERE[name], dataclasses.replace(setting, dataset=broken))


@pytest.mark.parametrize(
    "name", [name for name in ARMS_HERE if name not in ("no_pt", "meta-frozen", "meta-top", "meta-bottom")]
)
def test_an_interrupted_run_ends_in_the_same_bits(ran: Callable[[str], Ran], make: Make, name: str) -> None:
    whole = ran(name).run
    done = interrupted(lambda checkpoint: pretrain(ARMS_HERE[name], make(checkpoint=checkpoint)))
    assert the_same(whole, done)
    known = [*ONLINE.values(), "moved", "swing", "hypergradient"]
    assert {k: v for k, v in whole.numbers.items() if k in known} == {
        k: v for k, v in done.numbers.items() if k in known
    }
    for checkpoint in done.checkpoints:
        checkpoint.remove()
    assert not list(checkpoint.path.parent.glob("*"))


@pytest.mark.parametrize("name", ["graph_supervised", "cotrain", "meta"])
def test_the_same_seed_ends_in_the_same_bits_and_others_elsewhere(
    ran: Callable[[str], Ran], make: Make, name: str
) -> None:
    whole, again = ran(name).run, pretrain(ARMS_HERE[name], make())
    assert the_same(whole, again)
    again.checkpoints[0].remove()
    assert not equal(whole.pretrained.encoder, pretrain(ARMS_HERE[name], make(seed=1)).pretrained.encoder)


def test_weights_begin_at_1(make: Make) -> None:
    loop = meta_loop(make(), ARMS_HERE["meta"])  # type: ignore[arg-type]
    assert equal({name: value.detach() for name, value in loop.meta.items()}, initial_meta(COARSE))


@pytest.mark.parametrize("name", ["graph_supervised", "cotrain", "meta", "meta-identity", "meta-stable"])
def test_every_method_trains_in_bfloat16(make: Make, ran: Callable[[str], Ran], name: str) -> None:
    lower, plain = pretrain(ARMS_HERE[name], make(precision="bfloat16")), ran(name).run
    moved = max(
        float((a - b).abs().max()) for a, b in zip(lower.pretrained.vector(), plain.pretrained.vector(), strict=True)
    )
    assert 0 < moved < 2 * STEPS * 1e-3  # Adam's steps are at most 1e-3
    assert all(value.dtype is torch.float32 for value in lower.pretrained.vector())


@pytest.mark.parametrize("name", ["meta", "meta-identity", "meta-stable"])
def test_a_run_that_computes_anew_ends_alike(make: Make, ran: Callable[[str], Ran], name: str) -> None:
    again, once = pretrain(ARMS_HERE[name].model_copy(update={"recompute": True}), make()), ran(name).run
    torch.testing.assert_close(again.meta, once.meta, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again.pretrained.encoder, once.pretrained.encoder, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_meta_arm_takes_as_many_pt_steps_as_plain_pt(make: Callable[..., PpiSetting], period: int) -> None:
    setting = make()
    settings = meta_loop(setting, config.PpiMeta(pretrain_steps=period, warmup_epochs=0)).settings
    assert settings.iterations * period + settings.remainder == setting.steps
