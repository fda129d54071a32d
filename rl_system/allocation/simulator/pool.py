"""The environment pool: episodes in a fixed number of slots, groups started only with a permit of the staleness
ledger."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy

from rl_system.allocation.ledger import StalenessLedger
from rl_system.allocation.profile import Profile
from rl_system.allocation.simulator.drift import Regime
from rl_system.allocation.simulator.fleet import Episode, Fleet
from rl_system.allocation.window import ObservationWindow


@dataclass(slots=True, eq=False)
class Group:
    """sequence_tokens, unique_tokens: what training on it costs."""

    group_id: int
    version: int
    started: float
    episodes_left: int
    sequence_tokens: float
    unique_tokens: float
    dropped: bool


class Pool:
    """Keeps every slot taken while there are permits. `finished` holds the groups that can be trained on, by id."""

    def __init__(
        self,
        env: simpy.Environment,
        profile: Profile,
        ledger: StalenessLedger,
        window: ObservationWindow,
        rng: np.random.Generator,
        breaks: np.random.Generator,
        group_finished: Callable[[], None],
    ) -> None:
        self.env, self.workload, self.ledger, self.window = env, profile.workload, ledger, window
        self._rng, self._breaks = rng, breaks
        self.fleet: Fleet
        self.regime = Regime()
        self.finished: dict[int, Group] = {}
        self._group_finished = group_finished
        self._free = self.workload.concurrency
        self._waiting: deque[Episode] = deque()

    def fill(self) -> None:
        """Start episodes while there are slots and permits."""
        while self._free:
            if not self._waiting:
                if not self.ledger.permits():
                    break
                self._start_group()
            self._free -= 1
            episode = self._waiting.popleft()
            self.fleet.turn(episode, episode.tokens)
        self.window.empty_slots.set(self._free, self.env.now)

    def turn_sampled(self, episode: Episode) -> None:
        """An engine has finished a turn: the tools' time begins."""
        self.window.in_tools.set(self.window.in_tools.level + 1, self.env.now)
        self.env.timeout(episode.tool_s, episode).callbacks.append(self._tools_done)

    def _tools_done(self, event: simpy.Event) -> None:
        episode: Episode = event.value
        self.window.in_tools.set(self.window.in_tools.level - 1, self.env.now)
        episode.turns_left -= 1
        if episode.turns_left:
            self.fleet.turn(episode, episode.tokens)
            return
        if self.workload.broken and self._breaks.random() < self.workload.broken:
            self.window.episode_failed()
            episode.turns_left = episode.turns
            self.fleet.turn(episode, episode.tokens)
            return
        self.fleet.leave(episode)
        self._free += 1
        group: Group = episode.group
        group.episodes_left -= 1
        if not group.episodes_left:
            self._end(group)
        self.fill()

    def _end(self, group: Group) -> None:
        if group.dropped:
            self.ledger.drop(group.group_id, "zero_signal")
            return
        self.ledger.finish(group.group_id)
        self.finished[group.group_id] = group
        self.window.group_finished(self.env.now - group.started)
        self._group_finished()

    def _start_group(self) -> None:
        workload, regime, size = self.workload, self.regime, self.workload.group_size
        started = self.ledger.start()
        lengths = _lognormal(self._rng, workload.sampled_spread, size)
        tools = _lognormal(self._rng, workload.tool_spread, size)
        sequence_tokens = float(lengths.sum()) * workload.sequence_tokens * regime.sequence_tokens
        group = Group(
            group_id=started.group_id,
            version=started.version,
            started=self.env.now,
            episodes_left=size,
            sequence_tokens=sequence_tokens,
            unique_tokens=sequence_tokens / max(workload.compression * regime.compression, 1.0),
            dropped=bool(workload.dropped and self._rng.random() < workload.dropped),
        )
        tokens = (lengths * (workload.sampled_tokens * regime.sampled_tokens / workload.turns)).tolist()
        seconds = (tools * (workload.tool_s * regime.tool_s / workload.turns)).tolist()
        self._waiting.extend(Episode(group, tokens[i], seconds[i], workload.turns, workload.turns) for i in range(size))


def _lognormal(rng: np.random.Generator, spread: float, count: int) -> np.ndarray:
    """Factors of mean 1 and coefficient of variation `spread`; half of the log variance is common to all of them."""
    variance = math.log1p(spread**2)
    normal = rng.standard_normal(count + 1) * math.sqrt(variance / 2)
    return np.exp(normal[1:] + normal[0] - variance / 2)
