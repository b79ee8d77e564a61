"""Two seeds in one integer."""

from __future__ import annotations

import pytest

from metapt.errors import ConfigError
from metapt.twostage.pairs import SEEDS, finetune_seed, pair, pretrain_seed


@pytest.mark.parametrize("seeds", [(0, 0), (0, SEEDS - 1), (1, 0), (7, 13)])
def test_a_pair_comes_apart_again(seeds: tuple[int, int]) -> None:
    assert (pretrain_seed(pair(*seeds)), finetune_seed(pair(*seeds))) == seeds


def test_pairs_differ() -> None:
    assert len({pair(first, second) for first in range(3) for second in range(SEEDS)}) == 3 * SEEDS


@pytest.mark.parametrize("seeds", [(0, SEEDS), (0, -1), (-1, 0)])
def test_seeds_that_would_collide_are_refused(seeds: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="legal: 0 to 999"):
        pair(*seeds)
