"""What a rollout is worth and what the policy is asked to learn from it.

In the order of a step: `sequences_of` turns an episode into training sequences, `rewards` shapes what it earned,
`group_advantages` compares it with its group, `prepare_batch` normalises advantages and fixes loss weights over the
whole step, and `make_objective` gives the loss. Where a critic or a reference policy has a say in the advantages, the
trainers complete them.

Estimators, objectives and corrections are one file each in the folder of their kind, found by the file's name: adding
one takes a file and no change elsewhere.

Names are resolved on first use, so that actors that only handle rewards do not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_system.algorithms.aggregation import prepare_batch, set_loss_weights
    from rl_system.algorithms.groups import group_advantages, has_signal, score_group
    from rl_system.algorithms.policy_objective import make_objective
    from rl_system.algorithms.rewards import shaped_reward
    from rl_system.algorithms.sequences import sequences_of

_HOMES = {
    "group_advantages": "groups",
    "has_signal": "groups",
    "make_objective": "policy_objective",
    "prepare_batch": "aggregation",
    "score_group": "groups",
    "sequences_of": "sequences",
    "set_loss_weights": "aggregation",
    "shaped_reward": "rewards",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
