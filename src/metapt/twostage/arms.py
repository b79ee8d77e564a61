"""Arms of a PT and an FT stage: the settings in which one differs from its domain, and its controls."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, PlainSerializer

from metapt.sections import OWN_KEYS, ArmSection, DomainSection, Section, key, plain

S = TypeVar("S", bound=Section)

Changes = Annotated[
    S,
    PlainSerializer(lambda section: section.model_dump(mode="json", exclude_unset=True)),
    Field(json_schema_extra={"default": {}}),
]
"""The keys of a section in which an arm differs from its domain; the others stay unset."""

NO_PT = "no_pt"  # the method of arms without PT, which a pre-trained control must beat
META_PT = "meta"  # the method of arms that learn with Algorithm 2

CHANGES = ("pretrain", "finetune")
"""Keys of an arm that hold its `Changes` of its domain's sections of the same name."""


def changed(section: S, changes: S) -> S:
    """Return the section with the values of the keys that `changes` sets."""
    return section.model_copy(update={key: getattr(changes, key) for key in changes.model_fields_set})


class ComparedArm(ArmSection):
    """An arm that claims compare with its controls."""

    controls: dict[str, list[str] | None] = key(
        {},
        "arms that the arm is claimed to beat, each with the keys, beside the method, that the claim is about, so that "
        "the two may differ in them; empty: no control",
    )
    label: str = key("", "name in tables and figures; empty: its key")


A = TypeVar("A", bound=ComparedArm)


def to_pretrain(arm: A) -> A:
    """Return an arm without its changes of its domain's sections, and without what no run depends on."""
    changes = {key: type(getattr(arm, key))() for key in CHANGES if key in type(arm).model_fields}
    return arm.to_run().model_copy(update=changes)


def sharing(pretraining: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Return for each arm the first arm with the same PT, whose PT runs serve both.

    `pretraining` has the settings of each arm's PT. The name of an arm in them, at a key `of`, stands for its settings.

    >>> learn = {"learn": {"lr": 1}, "tuned": {"lr": 1}}
    >>> sharing(learn | {f"from {name}": {"warp": {"of": name}} for name in learn})
    {'learn': 'learn', 'tuned': 'learn', 'from learn': 'from learn', 'from tuned': 'from learn'}
    """

    def without_names(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: pretraining.get(each, each) if key == "of" else without_names(each) for key, each in value.items()}

    first: dict[str, str] = {}
    return {
        name: first.setdefault(json.dumps(without_names(settings), sort_keys=True), name)
        for name, settings in pretraining.items()
    }


def without_pretraining(control: str, arms: Mapping[str, Any], finetune: Section) -> str | None:
    """Return the first arm, by name, without PT and with the FT of `control`; None without one, or of one without PT.

    `finetune` is the FT of their domain, which the `arms` change.
    """
    if arms[control].method == NO_PT:
        return None
    own = {name: plain(changed(finetune, arm.finetune)) for name, arm in arms.items()}
    return next((name for name in sorted(arms) if arms[name].method == NO_PT and own[name] == own[control]), None)


class Pair(NamedTuple):
    """Two arms that are compared: the claim that the arm beats its control."""

    arm: str
    control: str
    papers: bool = False  # whether the paper makes the claim


def pairs(arms: Mapping[str, ComparedArm], papers: Collection[tuple[str, str]] = ()) -> list[Pair]:
    """Return the pairs of `arms` that are compared: those of the `papers` claims first."""
    found = [(arm, control) for arm, own in arms.items() for control in controls_of(own) if control in arms]
    first = [pair for pair in papers if pair in found]
    return [Pair(*pair, pair in first) for pair in dict.fromkeys([*first, *found])]


def label_of(name: str, arm: ComparedArm | None) -> str:
    """Return what an arm of a name is called in tables and figures."""
    return arm.label if arm is not None and arm.label else name.replace("_", " ")


def controls_of(arm: ComparedArm) -> dict[str, list[str]]:
    """Return the controls of an arm, each with the keys that the claim is about."""
    return {control: about for control, about in arm.controls.items() if about is not None}


def differing(arm: Section, control: Section) -> set[str]:
    """Return the keys of the control in which the two differ, beside their methods.

    A key that only the control has counts if its value is not the default.
    """
    known = type(control).model_fields.items()
    defaults = plain({key: field.get_default() for key, field in known if not field.is_required()})
    ours, others = defaults | plain(arm), plain(control)
    return {key for key, value in others.items() if value != ours.get(key)} - {"method", *OWN_KEYS}


def check_controls(settings: DomainSection, own: Mapping[str, ComparedArm], defaults: Collection[str]) -> None:
    """Check the controls of a domain's `own` arms that each of its experiments compares.

    A default arm that the config leaves out is no control. Raises ValueError if a control is no arm, if an arm and a
    control of one experiment differ in more than the claim is about, or if two of its arms have one label.
    """
    arms = {name: arm.resolved(own) for name, arm in own.items()}
    for experiment, section in settings.experiments():
        compared = [name for name in section.arm_names() if name in arms]
        labelled = dict(zip(compared, compared, strict=True))
        for name in compared:
            if (other := labelled.setdefault(label := label_of(name, arms[name]), name)) != name:
                raise ValueError(
                    f"arms.{name} and arms.{other}, which {experiment} compares, are both called {label!r} in tables "
                    "and figures; legal: a label for each"
                )
            for control, about in controls_of(arms[name]).items():
                place = f"arms.{name}.controls.{control}"
                if control == name or (control not in arms and control not in defaults):
                    others = [each for each in dict.fromkeys([*defaults, *arms]) if each != name]
                    raise ValueError(f"{place} is no other arm; legal: {', '.join(others)}")
                further = differing(arms[name], arms[control]) - set(about) if control in compared else set()
                if further:
                    raise ValueError(
                        f"{place}: the two differ in {', '.join(sorted(further))}; legal: arms that are equal in it, "
                        "its keys in the list, if the claim is about them, or no value, which takes the control away"
                    )
