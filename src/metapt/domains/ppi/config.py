"""The `ppi` section of the config.

Defaults are the paper's values (Section 5 and the appendix on multitask PT). Where the paper is silent they are those
of the code that its authors or Hu et al. (2020) released. A default from none of these sources says "not in the paper".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from metapt.domains.ppi.data.sections import SIMULATED, Source, String, Taxa
from metapt.method import ConjugateGradients, MetaArm, NeumannSeries, Recompute
from metapt.sections import (
    Count,
    Distinct,
    DomainSection,
    ExperimentSection,
    FinetuneSeeds,
    Positive,
    Rate,
    Section,
    Seeds,
    key,
)
from metapt.twostage.arms import Changes, ComparedArm, changed, check_controls, controls_of

Share = Annotated[float, Field(ge=0, lt=1)]
Names = Annotated[list[str], Distinct]
Rates = Annotated[list[Rate], Distinct]
Use = Literal["as_learned", "permuted"]
GroupWeight = Annotated[float, Field(gt=0, lt=2)]


class Network(Section):
    """The graph isomorphism network (GIN) of Hu et al. (2020)."""

    layers: Positive = key(5, "number of message-passing layers")
    width: Positive = key(300, "width of a node's state; a graph has twice as many features")


class PpiPretraining(Section):
    """Multitask pre-training, of every arm that changes nothing of it."""

    epochs: Positive = key(100, "passes over the PT graphs")
    batch_size: Positive = key(32, "graphs per minibatch")
    dropout: Share = key(0.2, "share of a layer's outputs that are zeroed")
    offset_centres: bool = key(
        True, "each graph has its own centre node (Hu et al.); false: one near the minibatch's start (released code)"
    )
    online_evaluations: Count = key(10, "tests of the FT head during PT, at most; not in the paper")
    precision: Literal["float32", "bfloat16"] = key(
        "float32", "number format of the encoder in PT steps and hypergradients (not in the paper)"
    )


class PpiFinetuning(Section):
    """Fine-tuning and its evaluation, of every arm that changes nothing of it."""

    epochs: Positive = key(50, "passes over the FT graphs; the best one on validation AUROC is tested")
    batch_size: Positive = key(32, "graphs per minibatch")
    dropout: Share = key(0.5, "share of a layer's outputs that are zeroed in FT of the whole network")
    lrs: Rates = key(
        [1e-5, 3e-5, 1e-4],
        "learning rates (Adam) of FT of the whole network, of which the first FT seed of each PT seed finds the best",
        min_length=1,
    )
    trial_epochs: Positive | None = key(
        None, "epochs after which only the best learning rate is trained to the end; empty: all are (not in the paper)"
    )
    precision: Literal["float32", "bfloat16"] = key(
        "float32", "number format of the encoder while the whole network is fine-tuned (not in the paper)"
    )
    linear_lrs: Rates = key(
        [1e-4],
        "learning rates (Adam) of linear evaluation (encoder frozen), of which each FT seed finds the best",
        min_length=1,
    )
    linear_epochs: Positive = key(50, "passes over the FT graphs in linear evaluation")


class PpiArm(ComparedArm):
    """What each arm may have."""

    finetune: Changes[PpiFinetuning] = key(PpiFinetuning(), "keys of `ppi.finetune` in which the arm differs")


class PretrainedPpiArm(PpiArm):
    """What each arm with PT may have."""

    pretrain: Changes[PpiPretraining] = key(PpiPretraining(), "keys of `ppi.pretrain` in which the arm differs")


class WithoutPretraining(PpiArm):
    """Start FT from random weights, which each FT seed draws anew."""

    method: Literal["no_pt"]


class TaskWeights(Section):
    """The task weights and the learning rate of another arm, with the same PT seed. Not in the paper."""

    of: str = Field(description="the arm, a key of `ppi.arms`")
    use: Use = key("as_learned", "the weights, or the same in random order")


class Supervised(PretrainedPpiArm):
    """Multitask supervised PT with fixed task weights."""

    method: Literal["supervised"]
    pretrain_lr: Rate = key(1e-3, "PT learning rate (Adam); with `weights`, that of their arm")
    weights: TaskWeights | None = key(None, "task weights of another arm; empty: each task has weight 1")
    group_weights: list[GroupWeight] | None = key(
        None, "weights of as many groups of PT tasks with alike labels; empty: none (not in the paper)", min_length=2
    )

    @model_validator(mode="after")
    def _weights_have_one_source(self) -> Supervised:
        if self.weights is not None and self.group_weights is not None:
            raise ValueError("weights and group_weights both say what the tasks weigh; leave one out")
        return self

    def resolved(self, arms: Mapping[str, Any]) -> Self:
        """Return the arm with the PT learning rate of the arm whose weights it takes, if that is among `arms`."""
        source = arms.get(weights_of(self) or "")
        if isinstance(source, WithoutPretraining | None):
            return self
        return self.model_copy(update={"pretrain_lr": source.pretrain_lr})


class CoTrain(PretrainedPpiArm):
    """PT and FT tasks trained together, one network with two heads."""

    method: Literal["cotrain"]
    pretrain_lr: Rate = key(1e-3, "PT learning rate (Adam)")
    gradients: Literal["alternate", "pcgrad"] = key(
        "alternate", "steps on PT and FT data in turn, or on both without conflicts of the gradients (Yu et al. 2020)"
    )


class LearnedWeights(PretrainedPpiArm):
    """Co-training that learns the weights of PT and FT tasks on FT validation data (Lorraine et al. 2020)."""

    method: Literal["learned_weights"]
    pretrain_lr: Rate = key(1e-4, "learning rate of the network (Adam)")
    meta_lr: Rate = key(1.0, "learning rate of the task weights (Adam)")
    pretrain_steps: Positive = key(
        10, "steps of the network between updates of the weights; not in the paper: that of `meta`"
    )
    warmup_epochs: Annotated[float, Field(ge=0)] = key(
        1, "epochs before the first update of the weights; not in the paper: that of `meta`"
    )
    neumann_terms: Count = key(1, "Hessian-vector products per update; not in the paper: that of `meta`")


class PpiMeta(PretrainedPpiArm, MetaArm):
    """Learn the task weights with Algorithm 2."""

    pretrain_lr: Rate = key(1e-4, "PT learning rate (Adam)")
    unroll: Literal["head", "fitted", "ridge"] = key(
        "head", "FT in a meta-update: steps of the head, a head fitted to convergence, or a ridge regression"
    )
    batch_size: Positive | None = key(
        32, "graphs per FT minibatch of a meta-update; empty: all (not in the paper; as in FT)"
    )
    hypergradient_batch: Positive | None = key(
        None, "PT graphs per hypergradient; empty: as many as in a PT step (not in the paper; as released)"
    )
    recompute: Recompute = False

    @model_validator(mode="after")
    def _minibatches_fit(self) -> PpiMeta:
        if self.reuse_gradient and self.hypergradient_batch is not None:
            raise ValueError(
                "hypergradient_batch and reuse_gradient exclude each other: with reuse_gradient hypergradients are of "
                "the PT minibatches; leave one out"
            )
        if self.batch_size is None and self.unroll == "head" and self.unroll_steps > 1:
            raise ValueError(
                f"batch_size is empty (all FT graphs) and unroll_steps is {self.unroll_steps}; legal: unroll_steps of "
                f"at most 1, or a batch_size"
            )
        return self


Arm = Annotated[WithoutPretraining | Supervised | CoTrain | LearnedWeights | PpiMeta, Field(discriminator="method")]


STABLE: dict[str, Any] = {
    "pretrain_lr": 1e-3,  # that of plain PT
    "inverse": ConjugateGradients(kind="conjugate_gradient", max_steps=10, rtol=0.01, relative_damping=0.05),
    "curvature": "gauss_newton",
    "unroll": "ridge",
    "folds": 5,
    "batch_size": 1024,
    "hypergradient_batch": 256,
    "pretrain_steps": 1000,
    "warmup_epochs": 6,
    "meta_lr": 10.0,
    "meta_optimizer": "SGD",
    "normalise": True,
}
RELEASED: dict[str, Any] = {
    "pretrain_lr": 1e-4,
    "pretrain": PpiPretraining(offset_centres=False),
    "finetune": PpiFinetuning(lrs=[1e-5]),
}
"""What the released code does in PT and FT of its meta arm, where it differs from the defaults."""


def _from(label: str, arm: str, use: Use, **compared: Any) -> Supervised:
    return Supervised(method="supervised", label=label, weights=TaskWeights(of=arm, use=use), **compared)


ARMS: dict[str, Arm] = {
    "no_pt": WithoutPretraining(method="no_pt", label="no PT"),
    "graph_supervised": Supervised(
        method="supervised", label="graph supervised", controls={"no_pt": [], "cotrain": []}
    ),
    "cotrain": CoTrain(method="cotrain", label="CoTrain"),
    "cotrain_pcgrad": CoTrain(method="cotrain", label="CoTrain + PCGrad", gradients="pcgrad"),
    "cotrain_learned_weights": LearnedWeights(method="learned_weights", label="CoTrain + learned weights"),
    "meta": PpiMeta(
        label="meta",
        controls={
            "graph_supervised": ["pretrain_lr"],
            "cotrain": ["pretrain_lr"],
            "cotrain_pcgrad": ["pretrain_lr", "gradients"],
            "no_pt": [],
            "graph_supervised-slow": [],
            "meta-frozen": ["weights"],
            "meta-permuted": ["weights"],
        },
    ),
    "meta-identity": PpiMeta(
        label="meta, no inverse", controls={"graph_supervised-slow": []}, extends="meta", inverse=NeumannSeries(terms=0)
    ),
    "meta-stable": PpiMeta(
        label="meta-stable",
        controls={"graph_supervised": [], "meta-stable-frozen": ["weights"], "meta-stable-permuted": ["weights"]},
        **STABLE,
    ),
    "graph_supervised-slow": Supervised(
        method="supervised", label="graph supervised, slow", extends="graph_supervised", pretrain_lr=1e-4
    ),
    "meta-fast": PpiMeta(label="meta, fast", controls={"graph_supervised": []}, extends="meta", pretrain_lr=1e-3),
    "meta-frozen": _from("meta's weights, frozen", "meta", "as_learned", controls={"meta-permuted": ["weights"]}),
    "meta-permuted": _from("meta's weights, permuted", "meta", "permuted"),
    "meta-stable-frozen": _from(
        "meta-stable's weights, frozen", "meta-stable", "as_learned", controls={"meta-stable-permuted": ["weights"]}
    ),
    "meta-stable-permuted": _from("meta-stable's weights, permuted", "meta-stable", "permuted"),
    "no_pt-released": WithoutPretraining(method="no_pt", label="no PT, released", finetune=RELEASED["finetune"]),
    "graph_supervised-released": Supervised(method="supervised", label="graph supervised, released", **RELEASED),
    "meta-released": PpiMeta(
        label="meta, released", controls={"graph_supervised-released": []}, head_steps_between_updates=1, **RELEASED
    ),
}

Evaluations = Annotated[list[Literal["full_transfer", "linear_evaluation"]], Distinct]


class ArmsSection(ExperimentSection):
    """The settings of an experiment that compares arms."""

    arms: Names = key([*ARMS], "arms, keys of `ppi.arms`", min_length=1)


class PpiSettings(DomainSection):
    """Multitask PT on protein graphs. Experiments share PT and FT runs."""

    stand_ins: ClassVar[tuple[str, ...]] = ("simulated",)
    source: Source = key(
        "hu2020", "generated STRING files, STRING as `string` says, or the archive of Hu et al. (2020), 2 GB"
    )
    string: String = String()
    test_species: Taxa = key([9606], "NCBI taxa of the test graphs", min_length=1)
    network: Network = Network()
    pretrain_seeds: Seeds = key(1, "PT runs of each arm, or a list of their seeds")
    finetune_seeds: FinetuneSeeds = key(5, "FT runs of each PT run")
    evaluations: Evaluations = key(
        ["full_transfer", "linear_evaluation"], "FT of the whole network, or of the head alone", min_length=1
    )
    pretrain: PpiPretraining = PpiPretraining()
    finetune: PpiFinetuning = PpiFinetuning()
    arms: dict[str, Arm] = key(ARMS, "arms by name; those from meta-identity on are ours")

    @model_validator(mode="after")
    def _sources_learn_weights(self) -> PpiSettings:
        for name, arm in self.named_arms().items():
            if not isinstance(arm, Supervised) or arm.weights is None:
                continue
            source = arm.weights.of
            if arm.pretrain_lr != Supervised.model_fields["pretrain_lr"].default:
                raise ValueError(
                    f"arms.{name} has weights and pretrain_lr; leave pretrain_lr out, since PT takes that of the arm "
                    f"{source}"
                )
            if not (source in self.arms and learns_weights(self.arms[source])):
                legal = ", ".join(other for other, each in self.arms.items() if learns_weights(each))
                raise ValueError(f"arms.{name}.weights.of is {source!r}, which learns no weights; legal: {legal}")
        return self

    @model_validator(mode="after")
    def _trials_are_shorter(self) -> PpiSettings:
        own = {f"arms.{name}.finetune": changed(self.finetune, arm.finetune) for name, arm in self.named_arms().items()}
        for place, finetune in ({"finetune": self.finetune} | own).items():
            trial, epochs = finetune.trial_epochs, finetune.epochs
            if trial is not None and trial > epochs:
                raise ValueError(f"{place}.trial_epochs is {trial}; legal: at most epochs, {epochs}, or empty")
        return self

    @model_validator(mode="after")
    def _species_are_there(self) -> PpiSettings:
        unread = {"hu2020": [*String.model_fields], "simulated": ["version", "links", "species"]}.get(self.source, [])
        if given := [key for key in unread if getattr(self.string, key) != getattr(String(), key)]:
            raise ValueError(
                f"string has {', '.join(given)}, and source is {self.source!r}, which does not read that; legal: "
                "source: string, or no such key"
            )
        if self.source != "hu2020":
            place, string = ("string", self.string) if self.source == "string" else ("simulated", SIMULATED)
            unknown = [str(taxon) for taxon in self.test_species if taxon not in string.species]
            if unknown:
                legal = ", ".join(map(str, string.species))
                raise ValueError(f"test_species names {', '.join(unknown)}; legal, as species of {place}: {legal}")
            if set(string.species) <= set(self.test_species):
                raise ValueError(f"test_species names all {place} species; leave one to train on")
        return self

    @model_validator(mode="after")
    def _controls_fit(self) -> PpiSettings:
        check_controls(self, self.arms, ARMS)
        return self


def weights_of(arm: Arm) -> str | None:
    """Return the arm whose learned weights this arm takes; None if it takes none."""
    return arm.weights.of if isinstance(arm, Supervised) and arm.weights is not None else None


def start_of(name: str, arms: Mapping[str, Arm]) -> str | None:
    """Return the control with fixed task weights that differs from an arm in its method alone; None without one."""
    own = controls_of(arms[name])
    found = (control for control, about in own.items() if not about and isinstance(arms.get(control), Supervised))
    return next(found, None)


def has_equal_weights(arm: Supervised) -> bool:
    """Return whether all PT tasks have weight 1."""
    return arm.weights is None and arm.group_weights is None


def learns_weights(arm: Arm) -> bool:
    """Return whether the arm learns task weights while it pre-trains."""
    return isinstance(arm, PpiMeta | LearnedWeights)


def uses_labels(arm: Arm) -> bool:
    """Return whether the FT labels change the arm's PT."""
    if isinstance(arm, Supervised):
        return arm.weights is not None
    return not isinstance(arm, WithoutPretraining)
