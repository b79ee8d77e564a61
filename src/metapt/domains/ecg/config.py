"""The settings of the ECG domain and its arms; those of an experiment are in its file in `experiments`.

A default is the paper's value (Section 6 and appendix "Meta-Parameterized SimCLR PT"), unless its description or that
of its section says that the paper has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from metapt.domains.ecg.data import FolderKey
from metapt.method import MetaArm, NeumannSeries, Recompute
from metapt.sections import Count, Distinct, DomainSection, FinetuneSeeds, Positive, Rate, Section, Seeds, key
from metapt.twostage.arms import Changes, ComparedArm, changed, check_controls


class Warp(Section):
    """The random temporal warp of a view, whose strength the arm's method fixes, learns or searches."""

    smoothing: Literal["displacement", "velocity"] = key(
        "displacement",
        "what is smoothed: the displacement, after integration, or the velocity before it (a true diffeomorphism)",
    )
    scale: Literal["square", "log"] = key(
        "square",
        "strength that the learned number m stands for, times the network's output: 100 m^2 (which never leaves 0) or "
        "exp(m) (not in the paper; released code: square)",
    )
    initial: Rate = key(
        4.0,
        "start: m with square, the strength with log (with velocity, about the typical displacement in samples) "
        "(not in the paper; released code: 4)",
    )
    network_width: Count = key(32, "channels of the network that sets each ECG's strength; 0: one strength for all")


class EcgPretraining(Section):
    """SimCLR pre-training, of every arm that changes nothing of it."""

    signals: Positive | None = key(None, "ECGs of folds 1-9 that are pre-trained on; empty: all")
    epochs: Positive = key(50, "passes over the PT ECGs")
    batch_size: Positive = key(256, "ECGs per minibatch, two views of each; a last part that is too short is dropped")
    lr: Rate = key(1e-4, "learning rate (Adam)")
    temperature: Rate = key(0.5, "temperature of NT-Xent, SimCLR's contrastive loss")
    jitter: Literal["fixed", "uniform"] = key(
        "fixed",
        "white noise of `noise` times a lead's standard deviation, or of a share drawn from U(0, `noise`) for each "
        "view (released code)",
    )
    noise: Rate = key(0.1, "standard deviation of the jitter's white noise over that of the lead")
    crop: Annotated[float, Field(gt=0, le=1)] = key(0.5, "largest share of a lead that a crop zeroes")
    precision: Literal["float32", "tf32", "bfloat16"] = key(
        "float32",
        "number format of the encoder in PT steps; tf32 is for GPUs; bfloat16 may turn hypergradients "
        "(benchmarks/README.md) (not in the paper; released code: none)",
    )


class EcgFinetuning(Section):
    """Fine-tuning and its evaluation, of every arm that changes nothing of it."""

    epochs: Positive = key(200, "passes over the FT training ECGs; the best one on validation AUROC is tested")
    batch_size: Positive = key(256, "ECGs per minibatch (released code: 64)")
    lr: Rate = key(1e-3, "learning rate (Adam)")
    batch_norm: Literal["train", "eval"] = key(
        "train", "mode of BatchNorm while the whole network trains (not in the paper; released code: eval)"
    )
    precision: Literal["float32", "tf32", "bfloat16"] = key(
        "float32",
        "number format of the encoder while the whole network is fine-tuned (not in the paper; released code: none)",
    )
    linear_lr: Rate = key(
        1e-2, "learning rate of linear evaluation, Adam on the head alone (not in the paper; released code: 1e-3)"
    )
    linear_epochs: Positive = key(200, "passes of linear evaluation (not in the paper; released code: 200)")


class EcgArm(ComparedArm):
    """What each arm may have."""

    finetune: Changes[EcgFinetuning] = key(EcgFinetuning(), "keys of `ecg.finetune` in which the arm differs")


class PretrainedEcgArm(EcgArm):
    """What each arm with PT may have."""

    pretrain: Changes[EcgPretraining] = key(EcgPretraining(), "keys of `ecg.pretrain` in which the arm differs")


class NoPretraining(EcgArm):
    """Start FT from random weights."""

    method: Literal["no_pt"]


class WarpOf(Section):
    """The warp of another arm, with the same PT seed. Not in the paper."""

    of: str = Field(description="the arm, a key of `ecg.arms`")
    use: Literal["as_learned", "as_started"] = key(
        "as_learned", "as that arm has learned it, or as it was before; it is kept throughout PT"
    )


class Simclr(PretrainedEcgArm):
    """Pre-train with a warp that is not learned; its network keeps its random weights."""

    method: Literal["simclr"]
    warp: Warp = Warp()
    warp_of: WarpOf | None = key(None, "the warp of another arm in place of `warp`")

    def resolved(self, arms: Mapping[str, Any]) -> Self:
        """Return the arm with the warp of the arm that `warp_of` names; `warp_of` stays for a learned warp."""
        if self.warp_of is None or isinstance(source := arms.get(self.warp_of.of), NoPretraining | None):
            return self
        learned = self.warp_of if self.warp_of.use == "as_learned" else None
        return self.model_copy(update={"warp": source.warp, "warp_of": learned})


class EcgMeta(PretrainedEcgArm, MetaArm):
    """Learn the warp's strength with Algorithm 2."""

    warp: Warp = Warp()
    unroll: Literal["head", "fitted"] = key(
        "head",
        "FT in a meta-update: steps of the head, or a head fitted to convergence (without `batch_size`, "
        "`unroll_steps`, `finetune_lr`)",
    )
    batch_size: Positive = key(256, "ECGs per FT minibatch of a meta-update (not in the paper; released code: 256)")
    finetune_lr: Rate = key(1e-4, "learning rate of the FT steps during PT (not in the paper; released code: 1e-4)")
    meta_lr: Rate = key(1.0, "learning rate of the warp's global scale m")
    network_lr: Rate = key(1e-4, "learning rate of the warp network, if any")
    folds: Annotated[int, Field(ge=2)] | None = key(
        None,
        "cross-fit the fitted head over this many folds of patients; empty: fit on train, evaluate on validation",
    )
    recompute: Recompute = False
    placebo: Literal["permuted_labels", "random_sign"] | None = key(
        None,
        "a control: labels permuted over FT ECGs during PT, or a random sign of each meta-update (not in the paper; "
        "released code: none)",
    )


class OptSla(PretrainedEcgArm):
    """SimCLR with a warp that was learned for supervised learning on the FT data (Lorraine et al. 2020)."""

    method: Literal["optsla"]
    warp: Warp = Warp()
    epochs: Positive = key(
        200, "passes over the FT training ECGs of the supervised run (not in the paper; released code: none)"
    )
    lr: Rate = key(1e-3, "learning rate of the supervised run, Adam (not in the paper; released code: none)")
    batch_size: Positive = key(256, "ECGs per minibatch of the supervised run (not in the paper; released code: none)")
    pretrain_steps: Positive = key(1, "supervised steps between meta-updates (not in the paper; released code: none)")
    neumann_terms: Count = key(1, "Hessian-vector products per meta-update")
    meta_lr: Rate = key(1.0, "learning rate of the warp's global scale m (not in the paper; released code: none)")
    network_lr: Rate = key(1e-4, "learning rate of the warp network, if any (not in the paper; released code: none)")


def _needs_log_scale(warp: Warp) -> Warp:
    if warp.scale != "log":
        raise ValueError("a search moves the logarithm of the strength; legal: scale: log")
    return warp


SearchedWarp = Annotated[Warp, AfterValidator(_needs_log_scale)]


class RandomSearch(PretrainedEcgArm):
    """SimCLR with the best of several random strengths, at the cost of a meta run. Not in the paper."""

    method: Literal["random_search"]
    warp: SearchedWarp = Warp(smoothing="velocity", scale="log", network_width=0)
    candidates: Positive = key(5, "strengths that are tried")
    range: tuple[Rate, Rate] = key(
        (0.25, 64.0), "range of the strengths, which are drawn log-uniformly; `warp.initial` has no effect"
    )
    budget: Annotated[float, Field(gt=1)] = key(
        1.55, "PT steps of search and final run, as a multiple of the final run's"
    )


class BestOf(PretrainedEcgArm):
    """SimCLR, the best of several runs that differ in their seeds alone. Not in the paper."""

    method: Literal["best_of"]
    warp: Warp = Warp()
    runs: Annotated[int, Field(ge=2)] = key(4, "PT runs, each with weights, minibatches and views of its own")
    evaluation: Literal["full_transfer", "linear_evaluation"] = key(
        "full_transfer", "FT of the whole network, or of the head alone, whose cross-validated AUROC chooses"
    )
    folds: Annotated[int, Field(ge=2)] = key(4, "folds of all labelled ECGs; all ECGs of a patient are in one")


class Joint(PretrainedEcgArm):
    """SimCLR's loss plus the FT loss of a labelled minibatch in each PT step. Not in the paper."""

    method: Literal["joint"]
    warp: Warp = Warp()
    batch_size: Positive = key(256, "FT training ECGs per PT step, unchanged as in FT")


class BiSsl(PretrainedEcgArm):
    """SimCLR, then SimCLR near an anchor that FT moves: BiSSL (Zakarias et al. 2024). Not in the paper."""

    method: Literal["bissl"]
    warp: Warp = Warp()
    anchor: Literal["learned", "start"] = key("learned", "FT moves the anchor, or it stays where plain PT has ended")
    anchor_weight: Rate = key(1e-3, "lambda: PT loss plus lambda / 2 times the squared distance from the anchor")
    pretrain_steps: Positive = key(20, "PT steps between eight steps of anchor and FT head")
    batch_size: Positive = key(256, "FT training ECGs per step of anchor and FT head")
    meta_lr: Rate = key(1e-3, "learning rate of anchor and FT head, Adam")


Arm = Annotated[
    NoPretraining | Simclr | EcgMeta | OptSla | RandomSearch | BestOf | Joint | BiSsl, Field(discriminator="method")
]

STABLE_WARP = Warp(smoothing="velocity", scale="log", initial=16.0)
STABLE: dict[str, Any] = {
    "warp": STABLE_WARP,
    "unroll_steps": 5,
    "head_steps_between_updates": 1,
    "finetune_lr": 1e-3,
    "meta_lr": 0.1,
    "meta_settings": {"betas": [0.8, 0.9]},
    "explosion_factor": 10.0,
}
REFITTED: dict[str, Any] = {key: STABLE[key] for key in ("warp", "meta_lr", "meta_settings", "explosion_factor")} | {
    "unroll": "fitted",
    "folds": 5,
}

RELEASED: dict[str, Any] = {
    "pretrain": EcgPretraining(jitter="uniform"),
    "finetune": EcgFinetuning(batch_norm="eval", batch_size=64, linear_lr=1e-3),
}
"""What the released code does in PT and FT of every arm, where it differs from the paper or the paper is silent."""


def _fixed(label: str, arm: str, use: Literal["as_learned", "as_started"]) -> Simclr:
    return Simclr(method="simclr", label=label, warp_of=WarpOf(of=arm, use=use))


MILD_WARP = Warp(smoothing="velocity", scale="log", initial=4.0, network_width=0)

ARMS: dict[str, Arm] = {
    "no_pt": NoPretraining(method="no_pt", label="no PT"),
    "simclr": Simclr(method="simclr", label="SimCLR", controls={"no_pt": []}),
    "simclr-mild": Simclr(method="simclr", label="SimCLR, mild warp", warp=MILD_WARP),
    "optsla": OptSla(method="optsla", label="SimCLR + OptSLA", controls={"simclr": []}),
    "meta": EcgMeta(
        label="meta",
        controls={
            "simclr": [],
            "optsla": ["epochs", "pretrain_steps"],
            "meta-frozen": ["warp_of"],
            "meta-permuted_labels": ["placebo"],
            "meta-random_sign": ["placebo"],
        },
    ),
    "meta-frozen": _fixed("meta's warp, frozen", "meta", "as_learned"),
    "meta-permuted_labels": EcgMeta(label="meta, permuted labels", extends="meta", placebo="permuted_labels"),
    "meta-random_sign": EcgMeta(label="meta, random signs", extends="meta", placebo="random_sign"),
    "meta-k0": EcgMeta(label="meta, K = 0", controls={"simclr": []}, extends="meta", unroll_steps=0),
    "meta-k5": EcgMeta(label="meta, K = 5", controls={"simclr": []}, extends="meta", unroll_steps=5),
    "meta-k10": EcgMeta(label="meta, K = 10", controls={"simclr": []}, extends="meta", unroll_steps=10),
    "meta-identity": EcgMeta(
        label="meta, no inverse", controls={"simclr": []}, extends="meta", inverse=NeumannSeries(terms=0)
    ),
    "no_pt-released": NoPretraining(method="no_pt", label="no PT, released", finetune=RELEASED["finetune"]),
    "simclr-released": Simclr(method="simclr", label="SimCLR, released", **RELEASED),
    "meta-released": EcgMeta(
        label="meta, released", controls={"simclr-released": []}, head_steps_between_updates=1, **RELEASED
    ),
    "meta-stable": EcgMeta(
        label="meta-stable",
        controls={"meta-stable-start": [], "meta-stable-frozen": ["warp_of"], "random_search": ["budget", "warp"]},
        **STABLE,
    ),
    "meta-stable-start": _fixed("meta-stable's warp at the start", "meta-stable", "as_started"),
    "meta-stable-frozen": _fixed("meta-stable's warp, frozen", "meta-stable", "as_learned"),
    "meta-refitted": EcgMeta(
        label="meta, refitted head", controls={"meta-stable-start": [], "random_search": ["budget", "warp"]}, **REFITTED
    ),
    "random_search": RandomSearch(method="random_search", label="random search"),
    "best_of_4": BestOf(method="best_of", label="SimCLR, best of several runs"),
    "simclr-joint": Joint(method="joint", label="SimCLR + supervised", controls={"simclr": []}),
    "bissl": BiSsl(method="bissl", label="BiSSL", controls={"simclr": [], "bissl-start": ["anchor"]}),
    "bissl-start": BiSsl(method="bissl", extends="bissl", label="BiSSL, anchor at its start", anchor="start"),
}

TRAINING_RECORDS = {"simulated": 2162, "ptbxl-1.0.3": 19601, "ptbxl-1.0.1": 19634}
"""Number of ECGs in folds 1 to 9 of each source."""

Split = Literal["patients", "released"]  # how labelled ECGs are divided, see `data.dataset.finetune_indices`
Evaluations = Annotated[list[Literal["full_transfer", "linear_evaluation"]], Distinct]


class EcgSettings(DomainSection):
    """SimCLR on ECGs. Experiments share PT and FT runs."""

    stand_ins: ClassVar[tuple[str, ...]] = ("simulated",)
    source: Literal["simulated", "ptbxl-1.0.3", "ptbxl-1.0.1", "folder"] = key(
        "ptbxl-1.0.3",
        "generated ECGs of known conditions; PTB-XL at 100 Hz: the paper has 1.0.1 (21,837 ECGs), which 1.0.3 "
        "corrects (21,799); or records of your own, which `folder` names",
    )
    folder: FolderKey = key(None, "records of your own; it goes with `source: folder`")
    split: Split = key(
        "patients",
        "how an FT set is divided into 80 % training and 20 % validation (25 ECGs: 60 and 40 %; 10 ECGs: 50 and 50 %): "
        "by patient, or by record (not in the paper; released code: released)",
    )
    samples: Literal[1000, 1024] = key(1000, "length of a signal; 1024: padded with zeros (released code)")
    width: Positive = key(32, "channels of the encoder's first stage; its features are eight times as many")
    pretrain_seeds: Seeds = key(3, "PT runs of each arm, or a list of their seeds; each has its own weights and FT set")
    finetune_seeds: FinetuneSeeds = key(5, "FT runs of each encoder")
    evaluations: Evaluations = key(
        ["full_transfer", "linear_evaluation"],
        "FT of the whole network (the paper's), or of the head alone",
        min_length=1,
    )
    capture: bool = key(
        False, "on a GPU, replay PT and FT steps as CUDA graphs, for jobs that have it to themselves (not in the paper)"
    )
    pretrain: EcgPretraining = EcgPretraining()
    finetune: EcgFinetuning = EcgFinetuning()
    arms: dict[str, Arm] = key(ARMS, "arms by name")

    @property
    def length(self) -> int:
        """Return the length of an ECG in samples, as the encoder reads it."""
        return self.samples if self.folder is None else self.folder.samples

    @model_validator(mode="after")
    def _folder_is_the_source(self) -> EcgSettings:
        if (self.source == "folder") != (self.folder is not None):
            raise ValueError(
                f"source is {self.source!r}; legal: `source: folder` and the key folder, or none of the two"
            )
        if self.folder is not None and self.samples != 1000:
            raise ValueError("samples is for PTB-XL; with `source: folder`, give folder.seconds in its place")
        return self

    @model_validator(mode="after")
    def _sources_learn_a_warp(self) -> EcgSettings:
        for name, arm in self.named_arms().items():
            if not isinstance(arm, Simclr) or arm.warp_of is None:
                continue
            if arm.warp != Warp():
                raise ValueError(f"arms.{name} has warp and warp_of; leave one of them out")
            legal = [other for other, each in self.arms.items() if isinstance(each, EcgMeta | OptSla)]
            if (source := arm.warp_of.of) not in legal:
                raise ValueError(
                    f"arms.{name}.warp_of.of is {source!r}, which learns no warp; legal: {', '.join(legal)}"
                )
        return self

    @model_validator(mode="after")
    def _meta_updates_are_left(self) -> EcgSettings:
        for name, arm in self.named_arms().items():
            if isinstance(arm, EcgMeta):
                pretrain = changed(self.pretrain, arm.pretrain)
                if signals := pretrain.signals or TRAINING_RECORDS.get(self.source):  # a folder's runs check this
                    per_epoch = steps_per_epoch(pretrain, signals)
                    arm.check_updates(f"arms.{name}", "the warp", pretrain.epochs, per_epoch)
        return self

    @model_validator(mode="after")
    def _controls_fit(self) -> EcgSettings:
        check_controls(self, self.arms, ARMS)
        return self


def steps_per_epoch(pretrain: EcgPretraining, signals: int) -> int:
    """Return the number of PT steps of a pass over `signals` ECGs."""
    return max(1, signals // pretrain.batch_size)


def sees_labels(arm: Arm) -> bool:
    """Return whether an arm's PT sees labelled ECGs."""
    start = isinstance(arm, BiSsl) and arm.anchor == "start"
    fixed = isinstance(arm, Simclr) and (arm.warp_of is None or arm.warp_of.use == "as_started")
    return not (start or fixed or isinstance(arm, NoPretraining))
