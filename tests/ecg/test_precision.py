"""The ECG encoder in bfloat16 has the parameters, features and derivatives of the one in float32, but for rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metapt.domains.ecg.resnet1d import Encoder, initial_pretrained

WIDTH = 4


def network(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    made = initial_pretrained(WIDTH, torch.Generator().manual_seed(0))
    buffers = {name: value.clone() for name, value in made.buffers.items()}
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in {**made.encoder, **buffers}.items()
    }


def signals(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(8, 256, 12, generator=torch.Generator().manual_seed(1)).to(dtype)


def derivatives(encoder: Encoder, training: bool) -> list[Tensor]:
    """Features, their statistics, first derivatives and a product with second derivatives, as vectors."""
    parameters = network()
    names = [name for name in parameters if "running" not in name and "num_batches" not in name]
    wrt = [parameters[name].requires_grad_() for name in names]
    features = encoder(parameters, signals(), training=training)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
    first = torch.autograd.grad((features * weights).sum() + features.square().sum(), wrt, create_graph=True)
    second = torch.autograd.grad(first, wrt, [value.detach() for value in wrt])
    statistics = [parameters["stem_norm.running_mean"], parameters["stem_norm.running_var"]]
    assert all(value.dtype is torch.float32 for value in (features, *first, *second, *statistics))
    return [
        features.detach().flatten(),
        *(torch.cat([v.detach().flatten() for v in each]) for each in (statistics, first, second)),
    ]


@pytest.mark.parametrize("training", [True, False])
def test_derivatives_are_those_in_float32_but_for_rounding(training: bool) -> None:
    lower, full = (derivatives(Encoder(WIDTH, precision), training) for precision in ("bfloat16", "float32"))
    errors = [float((low - high).norm() / high.norm()) for low, high in zip(lower, full, strict=True)]
    # With random weights and BatchNorm in training, gradients under torch's own layers in bfloat16 are off by 0.4, too.
    limits = (0.02, 0.01, 0.6, 0.6) if training else (0.02, 0.01, 0.1, 0.2)
    assert all(error < limit for error, limit in zip(errors, limits, strict=True)), errors
    assert errors[0] > 1e-5


def test_float32_is_the_default_and_leaves_float64_alone() -> None:
    features = Encoder(WIDTH)(network(torch.float64), signals(torch.float64), training=True)
    assert features.dtype is torch.float64


@pytest.mark.parametrize("training", [True, False])
def test_on_a_cpu_tf32_has_the_bits_of_float32(training: bool) -> None:
    both = (derivatives(Encoder(WIDTH, precision), training) for precision in ("tf32", "float32"))
    assert all(torch.equal(*values) for values in zip(*both, strict=True))


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision is 'float8'; legal: 'float32', 'tf32', 'bfloat16'"):
        Encoder(WIDTH, "float8")(network(), signals(), training=True)  # type: ignore[arg-type]
