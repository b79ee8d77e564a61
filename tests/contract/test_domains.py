"""Every domain's PT and FT jobs: what they leave, how they resume, and what arms of one seed share."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from torch.utils._pytree import tree_leaves

from metapt.engine.execute import work_of
from metapt.engine.jobs import Job
from metapt.errors import ConfigError
from metapt.evaluation import metrics
from metapt.hypergrad import Pretrained
from metapt.training import checkpoint
from metapt.training.pretraining import Pretrainer
from metapt.twostage.quantities import FT_TIME, PEAK_MEMORY, WALL_TIME, pair

from ..unit.ecg import small_ecgs
from ..unit.twostage.whole_runs import equal
from .domain_cases import CASES, STAGED, Case, Files, killed_at_every_save, named, untimed

ARMS = [(case, arm) for case in CASES.values() for arm in case.arms]
RUNS = [(case, arm) for case, arm in ARMS if not case.study]


@pytest.fixture(scope="module", autouse=True)
def made_smaller() -> Any:
    """Let the toy domain, which lies outside of the package, have a digest of its code, and let BiSSL be short."""
    digest = checkpoint.code_digest
    with pytest.MonkeyPatch.context() as patch:
        small_ecgs.shorten_bissl(patch)
        patch.setattr(checkpoint, "code_digest", lambda entry: "toy" if ".noise." in entry else digest(entry))
        yield


class Ran(NamedTuple):
    """A whole run of an arm: its outputs, the weights that its trainers began with, and digests of PT minibatches."""

    outputs: Files
    starts: list[Pretrained]
    seen: list[bytes]

    @property
    def learned(self) -> dict[str, Any]:
        """Return the content of pretrained.pt."""
        found: dict[str, Any] = torch.load(self.outputs["pretrained"], weights_only=True)
        return found


class World:
    """Prepared data of each domain, and runs of its arms, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prepared = cache(self._prepared)
        self.ran = cache(self._ran)

    def _prepared(self, name: str) -> Files:
        folder = self.folder / f"{name}-data"
        folder.mkdir()
        return CASES[name].prepare(folder)

    def jobs(self, case: Case, place: str = "whole", **section: Any) -> Any:
        return case.jobs(self.folder / case.name / place, **section)

    def _ran(self, name: str, arm: str, seed: int = 0) -> Ran:
        case = CASES[name]
        jobs = self.jobs(case)
        return self.watched(case, case.pretrain(jobs, arm, seed), self.needed(case, jobs, arm, seed))

    def needed(self, case: Case, jobs: Any, arm: str, seed: int = 0) -> Files:
        """Return the outputs of other arms that an arm's PT takes."""
        own, made = case.pretrain(jobs, arm, seed).inputs, {}
        for job in list(jobs.made.values()):
            for name in own:
                if job.outputs.get("pretrained") == own[name]:
                    made[name] = self.ran(case.name, job.name.split("/")[2], seed).outputs["pretrained"]
        return made

    def watched(self, case: Case, job: Job, inputs: Files) -> Ran:
        """Do a job, and note what its trainers begin with and which minibatches they see."""
        starts, seen, init = [], {}, Pretrainer.__init__

        def begun(self: Pretrainer, problem: Any, batches: Any, pretrained: Pretrained, *others: Any) -> None:
            starts.append(Pretrained(*({k: v.clone() for k, v in part.items()} for part in pretrained)))
            init(self, problem, batches, pretrained, *others)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pretrainer, "__init__", begun)
            if case.batches:
                kind = case.minibatches()
                draw = kind.pretrain

                def drawn(self: Any) -> Any:
                    batch = draw(self)
                    tensors = [value for value in tree_leaves(batch) if isinstance(value, torch.Tensor)]
                    seen[b"".join(value.numpy().tobytes() for value in tensors)] = None
                    return batch

                patch.setattr(kind, "pretrain", drawn)
            return Ran(case.work(job, self.prepared(case.name), **inputs), starts, list(seen))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("domains"))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "arm"), RUNS, ids=named)
def test_pt_leaves_what_it_promises(case: Case, arm: str, world: World) -> None:
    """All arms take as many PT steps, and those that learn nothing keep their hyperparameters."""
    ran, first = world.ran(case.name, arm), world.ran(case.name, case.plain).starts[0]
    learned, start = ran.learned, (ran.starts or [None])[-1]
    for part in ("encoder", "head", "buffers", "meta"):
        assert all(value.isfinite().all() and not value.requires_grad for value in learned[part].values())
    for part, before in (("encoder", first.encoder), ("buffers", first.buffers)):
        assert {name: value.shape for name, value in learned[part].items()} == {k: v.shape for k, v in before.items()}
    assert equal(learned["encoder"], first.encoder) == (start is None)
    counts = {int(value) for name, value in learned["buffers"].items() if name.endswith("num_batches_tracked")}
    assert counts <= ({0} if start is None else {case.steps * (2 if arm in case.twice else 1)})
    table, series = metrics.read(ran.outputs["metrics"]), metrics.read_series_rows(ran.outputs["series"])
    assert (set(table["experiment"]), set(table["arm"])) == ({case.name}, {arm})
    assert (set(table["replicate"]), set(table["evaluation"])) == ({0}, {"pretraining"})
    assert {WALL_TIME, PEAK_MEMORY} <= set(table["metric"])
    assert {row["replicate"] for row in series} <= {0}
    job = case.pretrain(world.jobs(case), arm)
    assert not list(Path(job.config["checkpoint"]).parent.glob("*")), "checkpoints of a finished run are removed"


@pytest.mark.slow
@pytest.mark.parametrize("case", STAGED, ids=named)
def test_arms_of_a_seed_share_their_start_and_their_minibatches(case: Case, world: World) -> None:
    plain = world.ran(case.name, case.plain)
    (first,) = plain.starts
    assert len(plain.seen) == case.steps
    for arm in case.arms:
        if arm in case.own_draws:
            continue
        ran = world.ran(case.name, arm)
        if not ran.starts:
            assert equal(ran.learned["encoder"], first.encoder)
            assert equal(ran.learned["head"], first.head)
            continue
        starts = ran.starts[:1] if arm in case.goes_on else ran.starts
        for start in starts:
            assert equal({name: start.encoder[name] for name in first.encoder}, first.encoder), arm
            assert equal(start.buffers, first.buffers)
        heads = starts[-1].head or {name: start.encoder[f"pretrain_head.{name}"] for name in first.head}
        assert equal(heads, first.head), arm
        assert ran.seen[: case.steps] == plain.seen, arm
    other = world.ran(case.name, case.plain, 1)
    assert not equal(other.starts[0].encoder, first.encoder)
    assert not set(other.seen) & set(plain.seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "arm", "control"),
    [(case, arm, control) for case in STAGED for arm, control in case.controls.items()],
    ids=named,
)
def test_an_arm_that_learns_nothing_gives_its_controls_bits(case: Case, arm: str, control: str, world: World) -> None:
    still = dataclasses.replace(case, arms=case.arms | {arm: case.arms[arm].model_copy(update=case.still)})
    still_ran = world.watched(still, still.pretrain(world.jobs(still, "still"), arm), {})
    ours, learning, theirs = still_ran.learned, world.ran(case.name, arm).learned, world.ran(case.name, control).learned
    for part in ("encoder", "head", "buffers"):
        assert equal(ours[part], theirs[part])
        assert not learning[part] or not equal(learning[part], theirs[part])
    assert theirs["meta"].keys() <= ours["meta"].keys()
    for name, value in learning["meta"].items():
        assert not torch.equal(value, ours["meta"][name]), "it learns"


ALIKE = {
    "ecg": ("meta-permuted_labels", "meta-random_sign"),
    "ppi": ("graph_supervised-slow", "meta-frozen", "meta-permuted", "meta-identity"),
}
"""Arms whose PT runs keep and take up nothing that those of others do not."""
LONG = "random_search", "optsla", "best_of"
"""Arms that make several runs."""
KILLED = [
    pytest.param(case, arm, marks=[pytest.mark.slow] if arm in (*ALIKE.get(case.name, ()), *LONG) else [])
    for case, arm in ARMS
    if case.study or case.arms[arm].method != "no_pt"
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "arm"), KILLED, ids=named)
def test_pt_that_is_killed_at_every_save_ends_in_the_same_bits(case: Case, arm: str, world: World) -> None:
    jobs, prepared = world.jobs(case, "killed"), world.prepared(case.name)
    job, needed, whole = case.pretrain(jobs, arm), world.needed(case, world.jobs(case), arm), world.ran(case.name, arm)
    killed_at_every_save(lambda: case.work(job, prepared, **needed))
    outputs = {name: Path(path) for name, path in job.outputs.items()}
    assert untimed(outputs) == untimed(whole.outputs)
    assert not list(Path(job.config["checkpoint"]).parent.glob("*"))


FINETUNED = [(case, case.plain) for case in STAGED] + [(case, "no_pt") for case in STAGED if "no_pt" in case.arms]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "arm"), FINETUNED, ids=named)
def test_ft_that_is_killed_at_every_save_ends_in_the_same_tables(case: Case, arm: str, world: World) -> None:
    """A checkpoint of FT from another encoder is passed over."""
    jobs, prepared = world.jobs(case, "ft"), world.prepared(case.name)
    job = case.finetune(jobs, arm)
    encoders = [{"pretrained": world.ran(case.name, arm, seed).outputs["pretrained"]} for seed in (0, 1)]
    first, other = (each if "pretrained" in job.inputs else {} for each in encoders)
    whole = untimed(case.work(job, prepared, **first))
    killed_at_every_save(lambda: case.work(job, prepared, **first))
    outputs = {name: Path(path) for name, path in job.outputs.items()}
    assert untimed(outputs) == whole
    table = metrics.read(outputs["metrics"])
    assert (set(table["experiment"]), set(table["arm"])) == ({case.name}, {arm})
    assert set(table["replicate"]) == {pair(0, number) for number in range(job.config["finetune_seeds"])}
    assert set(table["evaluation"]) == set(job.config["evaluations"])
    assert (table.loc[table["metric"] == FT_TIME, "value"] > 0).all()
    for (replicate, evaluation), cell in table.groupby(["replicate", "evaluation"]):
        series = metrics.frame(metrics.read_series_rows(outputs["series"]), metrics.SERIES_COLUMNS)
        own = series[(series["replicate"] == replicate) & (series["name"] == f"{evaluation}, validation AUROC (%)")]
        values = cell.set_index("metric")["value"]
        if "best epoch" in values:
            curve = own.set_index("step")["value"]
            assert curve[values["best epoch"]] == values["validation AUROC (%)"] == curve.max()
        assert not math.isnan(values.iloc[0])
    if other:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "write", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                case.work(job, prepared, **first)
        assert Path(job.config["checkpoint"]).is_file()
        assert untimed(case.work(job, prepared, **other)) != whole


REFUSALS: list[tuple[str, Any]] = [
    ("surprise", 1),
    ("arm", None),
    ("seed", "many"),
    ("arm_settings.surprise", 1),
    ("arm_settings.method", "another"),
    ("finetune_seeds", "many"),
    ("evaluations", 3),
    ("pretrain.epochs", "many"),
    ("finetune.epochs", "many"),
]
"""A place in a job's settings, and what stands there instead; None: nothing."""


@pytest.mark.parametrize(("case", "arm"), ARMS, ids=named)
def test_a_job_refuses_settings_that_are_not_its_own(case: Case, arm: str, world: World) -> None:
    jobs, refused = world.jobs(case), 0
    for job in [case.pretrain(jobs, arm)] + ([] if case.study else [case.finetune(jobs, arm)]):
        for place, value in REFUSALS:
            config = json.loads(json.dumps(job.config))
            *section, key = place.split(".")
            part = config.get(section[0]) if section else config
            if not isinstance(part, dict) or (key not in part and key != "surprise"):
                continue
            part.pop(key, None)
            if value is not None:
                part[key] = value
            with pytest.raises(ConfigError) as error:
                work_of(dataclasses.replace(job, config=config))
            assert f"the settings of the job {job.name}" in str(error.value)
            assert all(word in str(error.value) for word in place.split("."))
            refused += 1
    assert refused >= 2
