"""Which turn of an episode earned what.

An episode is a forest of turns: each goes on from its parent, or from none. `A(x)` is the advantage that the episode would
have had, had it earned `x`, the other members of its group as they were: every estimator of advantages says it, and the
baseline and the scale are the group's. With `R` the episode's reward, `r_k` one that turn `k` was given itself, both after
shaping, and `γ` the turn discount, a turn is credited with

    C_k = A(r_k)                                    if turn k was given a reward
    C_k = e_k + γ · mean of C_c over the turns c that go on from k        otherwise, and the mean over none is 0

where `e_k` is what the episode earned there: under credit `last`, `A(R)` at turns that nothing goes on from, 0 elsewhere;
under `spread`, an equal part `A(R) / turns` everywhere. So a reward of a turn's own is the whole credit of its tokens, and
reaches back along what led to it up to the next turn that has its own; a branch that ends without one takes the episode's;
where several branches go on from a turn, it is credited with their mean. In a dialogue without rewards of turns this is
`Σ_{j ≥ k} γ^(j − k) · e_j`: with `last` and no discount every turn carries the whole advantage, the usual credit by episode.
"""

from __future__ import annotations

import numpy as np

from rl_system.config.algorithm import AlgorithmConfig


def turn_advantages(
    advantage: float, parents: list[int], config: AlgorithmConfig, own: dict[int, float] | None = None
) -> np.ndarray:
    """`C` float64 [turns]. advantage: `A(R)`; parents: [turns], the earlier turn that each goes on from, −1 where from none;
    own: `A(r_k)` of the turns that were given a reward.
    """
    turns, own = len(parents), own or {}
    credits, following = np.zeros(turns), np.zeros(turns)  # following: the sum over the turns that go on from each
    branches = np.bincount([parent for parent in parents if parent >= 0], minlength=turns)
    for k in range(turns - 1, -1, -1):  # a turn comes after its parent
        if k in own:
            credits[k] = own[k]
        else:
            earned = advantage / turns if config.credit == "spread" else 0.0 if branches[k] else advantage
            credits[k] = earned + (config.turn_discount * following[k] / branches[k] if branches[k] else 0.0)
        if parents[k] >= 0:
            following[parents[k]] += credits[k]
    return credits

