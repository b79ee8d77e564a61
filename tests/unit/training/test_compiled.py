"""PT steps may be compiled by torch, as `step_problem`; hypergradients take the problem itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad.layers.batch_norm import batch_norm
from metapt.hypergrad.layers.convolution import convolution
from metapt.hypergrad.layers.relu import relu_
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings

from .problems import Classifier, Normed, Streams, classification


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Classifier, Normed])
def test_a_run_with_compiled_pt_steps_is_the_run_without(kind: type[Classifier]) -> None:
    def run(step_problem: Any) -> MetaPretraining:
        problem = kind()
        given = problem.pretrained, problem.meta, problem.head
        settings = MetaSettings(iterations=3, pretrain_steps=2)
        loop = MetaPretraining(problem, Streams(classification), *given, settings, step_problem=step_problem)
        loop.run()
        return loop

    problem = kind()
    compiled = torch.compile(problem.pretrain_loss, backend="aot_eager", fullgraph=True)
    ours, plain = run(SimpleNamespace(pretrain_loss=compiled)), run(None)
    torch.testing.assert_close(ours.pretrained.encoder, plain.pretrained.encoder)
    torch.testing.assert_close(ours.pretrained.buffers, plain.pretrained.buffers)
    torch.testing.assert_close(ours.meta, plain.meta)


@pytest.mark.slow
def test_compiled_layers_have_the_same_derivatives() -> None:
    def layers(values: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return relu_(batch_norm(convolution(values, kernel, (1, 2), (0, 1)), weight, bias))

    inputs = [torch.randn(*shape, requires_grad=True) for shape in ((6, 2, 1, 16), (4, 2, 1, 3), (4,), (4,))]
    expected, found = layers(*inputs), torch.compile(layers, backend="aot_eager")(*inputs)
    cotangent = torch.randn_like(expected)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, cotangent), torch.autograd.grad(expected, inputs, cotangent)
    )
