"""Arms of a PT and an FT stage: the settings in which one differs from its domain, and its controls."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from pydantic import Field, PlainSerializer

from metapt.sections import Section, plain

S = TypeVar("S", bound=Section)

Changes = Annotated[
    S,
    PlainSerializer(lambda section: section.model_dump(mode="json", exclude_unset=True)),
    Field(json_schema_extra={"default": {}}),
]
"""The keys of a section in which an arm differs from its domain; the others stay unset."""

NO_PT = "no_pt"  # the method of arms without PT, which a pre-trained control must beat

CHANGES = ("pretrain", "finetune")
"""Keys of an arm that hold its `Changes` of its domain's sections of the same name."""


def changed(section: S, changes: S) -> S:
    """Return the section with the values of the keys that `changes` sets."""
    return section.model_copy(update={key: getattr(changes, key) for key in changes.model_fields_set})


def own_settings(arm: Section) -> dict[str, Any]:
    """Return the settings of an arm without its changes of its domain's."""
    return {key: value for key, value in plain(arm).items() if key not in CHANGES}


def pretrain_settings(arm: Any, domain: Any) -> dict[str, Any]:
    """Return the settings on which the PT of an arm of a domain depends."""
    pretrain = {} if arm.method == NO_PT else plain(changed(domain.pretrain, arm.pretrain))
    return {"arm_settings": own_settings(arm), "pretrain": pretrain}


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
    """Return the first arm without PT, other than `control`, that has the FT of `control`; None if there is none.

    `finetune` is the FT of their domain, which the `arms` change.
    """
    own = {name: plain(changed(finetune, arm.finetune)) for name, arm in arms.items()}
    found = (name for name, arm in arms.items() if arm.method == NO_PT and own[name] == own[control])
    return next((name for name in found if name != control), None)


def counterpart(kind: type[S], arm: Section, **own: Any) -> S:
    """Return the arm of another method that differs from `arm` in nothing that both methods have a key for.

    The other keys have the values `own`, or else their defaults.
    """
    shared = {key: getattr(arm, key) for key in kind.model_fields if key in type(arm).model_fields}
    (method,) = get_args(kind.model_fields["method"].annotation)
    return kind(**shared | own | {"method": method})


def equal_to(wanted: Iterable[Section], arms: Mapping[str, Section]) -> list[str]:
    """Return for each wanted arm the name of the first arm that equals it; wanted arms without one are left out."""
    settings = {name: plain(arm) for name, arm in arms.items()}
    found = (next((name for name, each in settings.items() if each == plain(arm)), None) for arm in wanted)
    return [name for name in found if name is not None]


class Pair(NamedTuple):
    """Two arms that are compared: the claim that the arm beats its control."""

    arm: str
    control: str
    papers: bool = False  # whether the paper makes the claim


def differing(arm: Section, control: Section) -> set[str]:
    """Return the keys that both arms have, but for the method, and in which they differ."""
    common = type(arm).model_fields.keys() & type(control).model_fields.keys() - {"method"}
    ours, others = plain(arm), plain(control)
    return {key for key in common if ours[key] != others[key]}


def pairs(
    arms: Mapping[str, Section],
    papers: Mapping[tuple[str, str], Collection[str]],
    controls: Callable[[str], Iterable[str]],
) -> list[Pair]:
    """Return the pairs of `arms` that are compared: those of the paper, then each arm and each of its `controls`.

    `papers` has arm and control of each claim of the paper, and the keys in which the two differ beside their methods.
    A config may make them differ in more, and then they are not compared.
    """
    found = {
        (arm, control): Pair(arm, control, papers=True)
        for (arm, control), claimed in papers.items()
        if {arm, control} <= arms.keys() and differing(arms[arm], arms[control]) <= set(claimed)
    }
    for arm in arms:
        for control in controls(arm):
            if control in arms:
                found.setdefault((arm, control), Pair(arm, control))
    return list(found.values())
