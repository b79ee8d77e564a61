"""Problems made of `torch.nn.Module`s and loss functions of them, and problems in mixed precision."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils import checkpoint

from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.hypergrad.modules import (
    HEAD,
    Calling,
    called_with,
    check_alike,
    check_module,
    own,
    remembered,
    set_modes,
    warn_of_modes,
)
from metapt.hypergrad.nested import cloned, listed
from metapt.hypergrad.params import gpus_of
from metapt.hypergrad.problem import Checked
from metapt.hypergrad.trial import is_tested
from metapt.hypergrad.twice import leaves_of
from metapt.training.capture import drawing
from metapt.training.seeds import seeded

log = logging.getLogger(__name__)

_LEGAL = "names and shapes as in problem.pretrained and problem.head"


def encode_first(encoder: nn.Module, batch: Any) -> Tensor:
    """Return `encoder(batch[0])`, the features of a minibatch of inputs and labels. Raises TypeError for another."""
    if isinstance(batch, Tensor):
        raise TypeError(
            "the FT minibatch is a tensor, of which batch[0] is the first example; legal: (inputs, labels), or "
            "encode=lambda encoder, batch: encoder(batch) for a tensor of inputs"
        )
    if isinstance(batch, Mapping):
        raise TypeError(
            f"the FT minibatch is a mapping with the keys {', '.join(map(repr, batch))}; say which of them the encoder "
            "takes, by encode=lambda encoder, batch: encoder(batch[...])"
        )
    features: Tensor = encoder(batch[0])
    return features


class ModuleProblem:
    """A `MetaProblem` of three modules. The functions get the modules themselves, with the parameters in question.

    The functions are called with the modules in which the tensors are replaced for the duration of the call
    (`torch.func.functional_call`). So they may call the modules, their parts and their methods, as often as needed. The
    parameters and buffers of the modules are never changed; `Pretrained.load_into` does that. The modules are in
    training mode in `pretrain_loss`, and in evaluation mode in `encode` and `finetune_loss`; that mode stays.

    `pretrain_loss` may draw random numbers from torch's global generators, by dropout or `torch.randn_like`, where the
    minibatch is a `Seeded`, as those of `LoaderBatches` are: the generators are then seeded for the duration of a call,
    so that two calls with one minibatch draw the same numbers. Draws from `random` and NumPy are not seeded.

    Args:
        encoder: the module that FT keeps.
        head: the PT head; `torch.nn.Identity()` if there is none.
        finetune_head: the FT head; it shares no parameter with the other two.
        pretrain_loss: takes encoder, PT head, meta-parameters (a dictionary) and a PT minibatch; returns a scalar.
        finetune_loss: takes the FT head, features and an FT minibatch; returns a scalar.
        encode: takes the encoder and an FT minibatch; returns features.

    What `torch.utils.checkpoint` recomputes (with `use_reentrant=False`) is computed with the tensors of the call.

    Raises:
        TypeError: an argument is no module.
        ValueError: as `Pretrained.from_modules`; the FT head shares a tensor with the encoder or the PT head, or
            keeps statistics; a parameter has a gradient hook; or a module is wrapped for several processes. The methods
            raise it, too, if parameters were frozen, unfrozen or given a hook since, for other names or shapes than
            those of `pretrained` and `head`, and for a result that depends on a parameter of the modules themselves.
    """

    names: ClassVar = {"head_loss": "finetune_loss"}

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        finetune_head: nn.Module,
        *,
        pretrain_loss: Callable[[Any, Any, Params, Any], Tensor],
        finetune_loss: Callable[[Any, Tensor, Any], Tensor],
        encode: Callable[[Any, Any], Tensor] = encode_first,
    ) -> None:
        self._start = Pretrained.from_modules(encoder, head)
        _check_finetune_head(finetune_head, {"encoder": encoder, "PT head": head})
        self._head = {name: value.detach().clone() for name, value in own(finetune_head)[0].items()}
        self.modules = encoder, head, finetune_head
        self._trained = [frozenset(own(module)[0]) for module in self.modules]
        self._functions = {"pretrain_loss": pretrain_loss, "encode": encode, "finetune_loss": finetune_loss}
        self._pretraining, self._encoding = Calling(encoder=encoder, head=head), Calling(encoder=encoder)
        self._finetuning = Calling(head=finetune_head)
        in_encoder = {name for part in own(encoder) for name in part}
        fixed = {name: value for name, value in self._start.buffers.items() if name in in_encoder}
        self._encoder = self._start.encoder | fixed
        self._places = {name: f"encoder.{name}" if name in in_encoder else name for name in self._start.buffers}
        self._called: set[str] = set()
        self._outside: dict[str, list[Tensor]] = {}  # leaves of the first graph of a function that it was not given
        self._assigned: set[str] | None = None  # buffers that a call assigns anew; None before the first call
        self._check_modules()
        for what, module in {"encoder": encoder, "PT head": head}.items():
            warn_of_modes(what, module)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleProblem:
        """Return the problem itself, which no run changes: its functions use its modules, not copies of them."""
        return self

    @property
    def pretrained(self) -> Pretrained:
        """Return copies of the parameters and buffers that encoder and PT head had when the problem was made."""
        return Pretrained(*({name: value.clone() for name, value in part.items()} for part in self._start))

    @property
    def head(self) -> Params:
        """Return copies of the parameters that the FT head had when the problem was made."""
        return {name: value.clone() for name, value in self._head.items()}

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the PT loss, in training mode. Raises ValueError as the class says."""
        for what, given, start in zip(("encoder", "PT head", "buffers"), pretrained, self._start, strict=True):
            check_alike(what, given, start, _LEGAL)
        values = {f"encoder.{name}": value for name, value in pretrained.encoder.items()}
        values |= {f"{HEAD}{name}": value for name, value in pretrained.head.items()}
        buffers = {self._places[name]: value for name, value in pretrained.buffers.items()}
        # A buffer that is assigned anew gets its new value in place. The graph may hold it, so the modules have a copy.
        copies = {place: buffers[place].clone() for place in (buffers if self._assigned is None else self._assigned)}
        given = buffers | copies
        values |= given
        self._pretraining.train()
        before = remembered(self._pretraining, self._functions["pretrain_loss"]) if self._assigned is None else {}
        with drawing(batch, pretrained.vector()) as plain:
            loss = self._call("pretrain_loss", self._pretraining, values, meta, plain)
        after = remembered(self._pretraining, self._functions["pretrain_loss"]) if self._assigned is None else {}
        # An entry of a dictionary or a list that is new is a record or a cache.
        if kept := [name for name, _ in before.items() ^ after.items() if name in before or name[-1:] != "]"]:
            log.warning(
                "pretrain_loss changes %s: each call does, more often than PT has steps, and a further run begins with "
                "what this one leaves. Keep it in a buffer of encoder or PT head that has a value from the start; a "
                "frozen module of these, such as a teacher, has buffers only",
                min(kept),
            )
        assigned = {place for place, value in given.items() if values[place] is not value}
        self._assigned = assigned.union(self._assigned or ())
        for place in copies.keys() | assigned:
            if values[place].shape != buffers[place].shape:
                raise ValueError(
                    f"pretrain_loss gives the buffer {place!r} the shape {list(values[place].shape)}, and it had "
                    f"{list(buffers[place].shape)}; legal: buffers that keep their shapes"
                )
            buffers[place].copy_(values[place].detach())
        return loss

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        """Return the features, in evaluation mode. Raises ValueError as the class says."""
        given = {name: value for name, value in encoder.items() if name not in self._places or name in self._encoder}
        check_alike("encoder", given, self._encoder, _LEGAL)
        self._encoding.train(False)
        return self._call("encode", self._encoding, {f"encoder.{name}": value for name, value in given.items()}, batch)

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        """Return the FT loss, in evaluation mode. Raises ValueError as the class says."""
        check_alike("FT head", head, self._head, _LEGAL)
        self._finetuning.train(False)
        values = {f"head.{name}": value for name, value in head.items()}
        return self._call("finetune_loss", self._finetuning, values, features, batch)

    def _call(self, function: str, module: nn.Module, values: Params, *arguments: Any) -> Tensor:
        self._check_modules()

        def refuse(*_: Any) -> None:
            raise ValueError(
                f"{function} calls or reads a module that it is not given, whose tensors are those of the start; "
                "legal: the modules among its arguments. What FT needs of the encoder, encode returns"
            )

        def call(*arguments: Any) -> Tensor:
            with recomputed_with(module, values), ExitStack() as hooks:
                for part in others:
                    hooks.enter_context(part.register_forward_pre_hook(refuse))
                result: Tensor = called_with(module, values, self._functions[function], *arguments)
            return result

        whole = set() if function in self._called else {part for each in self.modules for part in each.modules()}
        others = [part for part in whole.difference(module.modules()) if not isinstance(part, torch.jit.ScriptModule)]
        result = call(*arguments)
        if function in self._called or not isinstance(result, Tensor):
            return result
        graph = result if torch.is_grad_enabled() else None
        if graph is None and function != "pretrain_loss" and not torch.is_inference_mode_enabled():
            # What differentiates itself fails there.
            with suppress(Exception), seeded(0, gpus_of(values.values())), _with_graph():
                graph = call(*arguments)
        if graph is not None and not self._check_graph(function, graph, [*values.values(), *listed(arguments)]):
            if function != "pretrain_loss" and self._depends_on_others(module, result, call, arguments):
                refuse()
            self._called.add(function)
        return result

    def _depends_on_others(
        self, module: nn.Module, result: Tensor, call: Callable[..., Tensor], arguments: Sequence[Any]
    ) -> bool:
        """Return whether NaN in the modules that a call is not given gives NaN, or an error that comes of NaN only."""
        given = set(module.children())
        others = Calling(**{str(place): each for place, each in enumerate(self.modules) if each not in given})
        tensors = [*others.named_parameters(), *others.named_buffers()]
        if any(isinstance(part, torch.jit.ScriptModule) for part in others.modules()):
            return False

        def times(factor: float) -> Tensor | None:
            with suppress(Exception), seeded(0, gpus_of(value for _, value in tensors)):
                changed = {name: value.detach() * factor for name, value in tensors if value.is_floating_point()}
                found: Tensor = called_with(others, changed, lambda *_: call(*cloned(arguments)))
                return found
            return None

        if (found := times(torch.nan)) is None:
            return times(1.0) is not None
        return bool(found.isnan().any() > result.isnan().any())

    def _check_modules(self) -> None:
        """Raise ValueError if parameters were frozen or unfrozen, one has a hook, or parametrisations are cached."""
        if parametrize._cache_enabled:
            raise ValueError(
                "parametrize.cached() would keep the tensors of one call for the next; legal: to call outside of it"
            )
        for what, module, trained in zip(("encoder", "PT head", "FT head"), self.modules, self._trained, strict=True):
            for name, value in module.named_parameters():
                if value.requires_grad != (name in trained):
                    raise ValueError(
                        f"{name!r} of the {what} has requires_grad={value.requires_grad} now, and had another one when "
                        "the problem was made: freeze and unfreeze parameters first, then make a ModuleProblem"
                    )
                if value._backward_hooks or value._post_accumulate_grad_hooks:
                    raise ValueError(
                        f"{name!r} of the {what} has a gradient hook (register_hook), which would never be called, "
                        "since a copy of the parameter is trained: remove it. A mask belongs into the module, as in "
                        "F.linear(x, mask * weight); a gradient that needs clipping, into a smaller learning rate"
                    )

    def _check_graph(self, function: str, result: Tensor, given: list[Tensor]) -> bool:
        """Raise ValueError if a graph ends in a parameter of the modules, or warn if in another, that was not given.

        Return whether the next graph is to be looked at: a leaf that is in both was not made inside of the call.
        """
        parts = zip(("encoder", "PT head", "FT head"), self.modules, strict=True)
        names = {
            id(value): f"{name!r} of the {part}" for part, module in parts for name, value in module.named_parameters()
        }
        before, outside = self._outside.pop(function, None), leaves_of(result, given)
        for leaf in outside:
            if id(leaf) in names:
                raise ValueError(
                    f"{function} depends on {names[id(leaf)]} itself, which was taken outside of the call, as in "
                    "list(encoder.parameters()) before it, and is not trained: take it inside, from the argument, as "
                    "in sum(p.square().sum() for p in encoder.parameters())"
                )
            if isinstance(leaf, nn.Parameter) or any(leaf is each for each in before or ()):
                log.warning(
                    "%s depends on a parameter, of the shape %s, that is in none of the three modules and is not "
                    "trained: put it into the PT head or the encoder, or call requires_grad_(False) if it is meant to "
                    "stay. Hyperparameters have to be those that pretrain_loss is given",
                    function,
                    list(leaf.shape),
                )
                return False
        if before is None and outside:
            self._outside[function] = outside
        return function in self._outside


@contextmanager
def _with_graph() -> Iterator[None]:
    """Give results a graph that keeps no tensors, and only shows what a result depends on."""
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda kept: kept):
        yield


def _check_finetune_head(module: nn.Module, others: dict[str, nn.Module]) -> None:
    """Check that an FT head has its own parameters and keeps no statistics (see the errors of `ModuleProblem`)."""
    check_module("FT head", module)
    for what, other in others.items():
        theirs = {id(value) for value in (*other.parameters(), *other.buffers())}
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if id(value) in theirs:
                raise ValueError(
                    f"the FT head shares {name!r} with the {what}; legal: tensors of its own, since FT trains the "
                    "head while PT changes encoder and PT head. To start from the same values: copy.deepcopy(module)"
                )
    for name, part in module.named_modules():
        if getattr(part, "running_mean", None) is not None:
            raise ValueError(
                f"{name or 'the whole'} of the FT head, a {type(part).__name__}, keeps running statistics, which FT "
                "does not train; legal: track_running_stats=False, LayerNorm, or the layer as the last of the encoder"
            )


_NAMES = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
_GENERATOR = next(name for name in _NAMES if hasattr(checkpoint, name))
"""The function that `torch.utils.checkpoint` calls; the first one is of torch 2.14, where the second is unused."""


@contextmanager
def recomputed_with(module: nn.Module, values: Params) -> Iterator[None]:
    """Let what `torch.utils.checkpoint` recomputes of the calls inside the context run as it did then.

    torch recomputes a function in the backward pass, when the modules have their own tensors back. It is then to run
    with the tensors, the modes and the buffers that it had. The buffers are copies, so that a recomputation updates no
    statistics a second time. `module` has all modules that are called, `values` what is in the place of its tensors.

    Raises:
        RuntimeError: inside the context a checkpoint is made with `use_reentrant=True`.
    """
    plain = getattr(checkpoint, _GENERATOR)
    reentrant = checkpoint.CheckpointFunction
    updated = {name for name, _ in module.named_buffers()} & values.keys()

    def generator(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        modes = [(part, part.training) for part in module.modules()]
        before = {name: module.get_buffer(name).clone() for name in updated}

        def again(*arguments: Any, **named: Any) -> Any:
            now = [(part, part.training) for part in module.modules()]
            set_modes(modes)
            tensors = values | {name: value.clone() for name, value in before.items()}
            try:
                with recomputed_with(module, tensors):
                    return called_with(module, tensors, lambda *_: function(*arguments, **named))
            finally:
                set_modes(now)

        return plain(again, *arguments, **named)

    setattr(checkpoint, _GENERATOR, generator)
    checkpoint.CheckpointFunction = _Reentrant  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        setattr(checkpoint, _GENERATOR, plain)
        checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]


class _Reentrant:
    """Stands for the checkpoints that torch can neither differentiate twice nor w.r.t. given tensors."""

    @staticmethod
    def apply(*_: Any) -> Tensor:
        raise RuntimeError(
            "torch.utils.checkpoint with use_reentrant=True can't be differentiated twice, as a hypergradient needs "
            "it; legal: checkpoint(..., use_reentrant=False). Of a model of transformers: "
            'gradient_checkpointing_enable({"use_reentrant": False})'
        )


class Autocast(Checked):
    """A problem whose losses and features are computed under `torch.autocast` in bfloat16, and returned in float32.

    What is float64 stays so.

    As `step_problem` of `MetaPretraining` it serves the plain PT steps, and hypergradients stay in float32. As
    `problem` it serves hypergradients, too, whose second derivatives then have bfloat16's rounding errors. What else
    the problem offers, such as `targets`, is computed as it is.

    Args:
        problem: the losses.
        device: the kind of device, "cuda" or "cpu".
    """

    def __init__(self, problem: MetaProblem, device: str = "cuda") -> None:
        self._problem, self._device = problem, torch.device(device).type

    @property
    def tested(self) -> bool:
        """Return whether tests have compared the second derivatives of the problem (see `is_tested`)."""
        return is_tested(self._problem)

    def _value(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with torch.autocast(self._device, torch.bfloat16):
            value = function(*arguments)
            return value.to(torch.promote_types(value.dtype, torch.float32))
