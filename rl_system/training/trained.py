"""What the policy and the critic have in common on one rank: a model, its flat vectors, its optimizer, its bad steps."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from rl_system.config.optimizer import OptimizerConfig
from rl_system.executor.gradients import gradient_buffers
from rl_system.training.bad_steps import BadSteps
from rl_system.training.flat_parameters import FlatParameters
from rl_system.training.optimizer import ShardedAdamW
from rl_system.training.ranks import Ranks


class Trained:
    """Owns `model` from now on. parts: the modules that executors run, by what their parameters' names begin with.

    cure: what to lower when too many steps in a row were bad, for the error message.
    """

    def __init__(
        self, model: nn.Module, parts: Mapping[str, nn.Module], config: OptimizerConfig, ranks: Ranks, cure: str
    ) -> None:
        self.model, self.ranks = model, ranks
        self.bad_steps = BadSteps(config.max_bad_steps, cure)
        self._parts = dict(parts)
        self._lay_out(config)

    def regroup(self, ranks: Ranks) -> None:
        """Take a place in another group. Parameters stay; optimizer states are lost, and zero until somebody fills them:
        see `resharding`.
        """
        config = self.optimizer.config
        del self.optimizer  # so that there need not be room for its old states beside the new ones
        self.ranks = ranks
        self._lay_out(config)

    def _lay_out(self, config: OptimizerConfig) -> None:
        """Vectors and optimizer that suit the number of ranks."""
        self.flat = FlatParameters(self.model, self.ranks.size)
        for prefix, part in self._parts.items():
            views = self.flat.gradient_of.items()
            gradient_buffers(part).use({name.removeprefix(prefix): view for name, view in views if name.startswith(prefix)})
        self.optimizer = ShardedAdamW(self.flat, config, self.ranks)
