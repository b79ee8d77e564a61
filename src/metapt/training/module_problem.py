"""A problem that is made of `torch.nn.Module`s and loss functions of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.func import functional_call

from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.modules import HEAD, Calling, check_module, own, tensors
from metapt.training.seeds import Seeded, seeded


def encode_first(encoder: nn.Module, batch: Any) -> Tensor:
    """Return `encoder(batch[0])`, the features of a minibatch of inputs and labels. Raises TypeError for a mapping."""
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

    Raises:
        TypeError: an argument is no module.
        ValueError: as `Pretrained.from_modules`; the FT head shares a parameter with the encoder or the PT head, or
            keeps statistics.
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
        *_, buffers = tensors(encoder, head)
        _check_finetune_head(finetune_head, {"encoder": encoder, "PT head": head})
        self.modules = encoder, head, finetune_head
        self._functions = pretrain_loss, encode, finetune_loss
        self._pretraining, self._encoding = Calling(encoder=encoder, head=head), Calling(encoder=encoder)
        self._finetuning = Calling(head=finetune_head)
        self._in_encoder = {name for part in own(encoder) for name in part}
        self._buffers = {name: name if name not in self._in_encoder else f"encoder.{name}" for name in buffers}
        self._devices = sorted({value.device.index for value in encoder.parameters() if value.device.type == "cuda"})

    @property
    def pretrained(self) -> Pretrained:
        """Return copies of the present parameters and buffers of encoder and PT head."""
        return Pretrained.from_modules(*self.modules[:2])

    @property
    def head(self) -> Params:
        """Return copies of the present parameters of the FT head."""
        return {name: value.detach().clone() for name, value in own(self.modules[2])[0].items()}

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the PT loss, in training mode."""
        values = {f"encoder.{name}": value for name, value in pretrained.encoder.items()}
        values |= {f"{HEAD}{name}": value for name, value in pretrained.head.items()}
        values |= {self._buffers[name]: value for name, value in pretrained.buffers.items()}
        self._pretraining.train()
        if isinstance(batch, Seeded):
            with seeded(batch.seed, self._devices):
                return _call(self._pretraining, values, self._functions[0], meta, batch.batch)
        return _call(self._pretraining, values, self._functions[0], meta, batch)

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        """Return the features, in evaluation mode."""
        self._encoding.train(False)
        values = {f"encoder.{name}": value for name, value in encoder.items() if name in self._in_encoder}
        return _call(self._encoding, values, self._functions[1], batch)

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        """Return the FT loss, in evaluation mode."""
        self._finetuning.train(False)
        values = {f"head.{name}": value for name, value in head.items()}
        return _call(self._finetuning, values, self._functions[2], features, batch)


def _call(module: nn.Module, values: Params, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    result: Tensor = functional_call(module, values, (function, *arguments))
    return result


def _check_finetune_head(module: nn.Module, others: dict[str, nn.Module]) -> None:
    """Check that an FT head has its own parameters and keeps no statistics.

    Raises:
        TypeError, ValueError: see `ModuleProblem`.
    """
    check_module("FT head", module)
    for what, other in others.items():
        theirs = {id(value) for value in other.parameters()}
        for name, value in module.named_parameters():
            if id(value) in theirs:
                raise ValueError(
                    f"the FT head shares {name!r} with the {what}; legal: parameters of its own, since FT trains the "
                    "head while PT trains encoder and PT head. To start from the same values: copy.deepcopy(module)"
                )
    for name, part in module.named_modules():
        if getattr(part, "running_mean", None) is not None:
            raise ValueError(
                f"{name or 'the whole'} of the FT head, a {type(part).__name__}, keeps running statistics, which FT "
                "does not train; legal: track_running_stats=False, LayerNorm, or the layer as the last of the encoder"
            )
