"""Errors of torch about operations that have no derivative, or no second one, with what to do instead."""

from __future__ import annotations

import re

_NO_DERIVATIVE = re.compile(r"derivative for (?:aten::|')([^']+?)'? is not implemented")
_SPARSE = re.compile(r"sparse gradients|add\(sparse")
_REMEDIES = {
    "scaled_dot_product": "put the training into `with torch.nn.attention.sdpa_kernel("
    "torch.nn.attention.SDPBackend.MATH):`, whose attention torch differentiates twice",
    "embedding_bag": "take torch.nn.Embedding and the mean or the sum of its output over the words",
    "cudnn_rnn": "put the training into `with torch.backends.cudnn.flags(enabled=False):`",
    "cdist": 'take torch.cdist(..., compute_mode="use_mm_for_euclid_dist"), or compute the distances from differences',
    "pdist": "compute the distances from differences, as in (x[:, None] - x).square().sum(-1)",
    "channel_shuffle": "shuffle by x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)",
}


def explain(error: RuntimeError) -> None:
    """Raise a RuntimeError that says what to do, if `error` is torch's about an operation without a derivative."""
    message = str(error)
    found = _NO_DERIVATIVE.search(message)
    if found is not None:
        name = found[1]
        advice = next((remedy for part, remedy in _REMEDIES.items() if part in name), None)
        order = "second derivative, which a hypergradient needs" if name.endswith("_backward") else "derivative"
        raise RuntimeError(
            f"a function of the problem calls an operation of which torch has no {order}: {name}. "
            f"Instead: {advice or 'write it with operations that torch differentiates twice'}"
        ) from error
    if _SPARSE.search(message):
        raise RuntimeError(
            f"an embedding gives sparse gradients, and torch says: {message}. Make it with sparse=False; SGD without "
            "weight decay takes sparse gradients, too"
        ) from error
