"""The rollout side: engines that share their speed among their sequences, and the router in front of them.

An engine is a processor-sharing station: with b sequences each gets `tokens_per_s / (b + half_batch)` tokens a
second. It keeps one clock of tokens that a sequence has got so far (virtual time; Parekh and Gallager 1993 use the
same device for fair queueing), so that an arrival or a departure costs O(log b) and not a pass over all sequences.

An episode keeps to one engine. Events are plain callbacks: a simpy process per episode would cost several times as
much.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np
import simpy

from rl_system.allocation.profile import Generation

STRAGGLING_S = 600.0
"""Mean length of a spell at half speed."""


@dataclass(slots=True, eq=False)
class Episode:
    """tokens and tool_s are those of one turn; `sampled` is what a group's training cost goes with."""

    group: object
    tokens: float
    tool_s: float
    turns: int
    turns_left: int
    engine: Engine | None = None


@dataclass(slots=True, eq=False)
class Engine:
    """One accelerator that generates. `load`: episodes that keep to it, those in their tools included."""

    env: simpy.Environment
    index: int
    generation: Generation
    speed: float
    decoded: Callable[[Episode], None]
    busy_changed: Callable[[int], None]
    since: float
    """Moment up to which `tokens` counts."""
    load: int = 0
    alive: bool = True
    tokens: float = 0.0
    """Sampled so far."""
    _clock: float = 0.0
    _rate: float = 0.0
    _paused_until: float = 0.0
    _due: float = float("inf")
    _count: int = 0
    _running: list[tuple[float, int, Episode]] = field(default_factory=list)

    def add(self, episode: Episode, tokens: float) -> None:
        self._advance()
        self._count += 1
        heapq.heappush(self._running, (self._clock + tokens, self._count, episode))
        if len(self._running) == 1:
            self.busy_changed(+1)
        self._plan()

    def set_speed(self, speed: float) -> None:
        self._advance()
        self.speed = speed
        self._plan()

    def pause(self, seconds: float) -> None:
        self._advance()
        self._paused_until = max(self._paused_until, self.env.now + seconds)
        self._rate = 0.0
        self._call_at(self._paused_until)

    def stop(self) -> list[tuple[Episode, float]]:
        """Its running episodes with the tokens that they still need in this turn."""
        self._advance()
        left = [(episode, max(end - self._clock, 0.0)) for end, _, episode in sorted(self._running)]
        if self._running:
            self.busy_changed(-1)
        self._running.clear()
        self.alive, self._rate, self._due = False, 0.0, float("inf")
        return left

    def settle(self) -> float:
        """Tokens sampled up to now."""
        self._advance()
        return self.tokens

    def _advance(self) -> None:
        now = self.env.now
        progress = self._rate * (now - self.since)
        self._clock += progress
        self.tokens += progress * len(self._running)
        self.since = now

    def _plan(self) -> None:
        """Set the speed for the sequences that are there, and be called when the first of them ends."""
        if not self._running or self.env.now < self._paused_until:
            self._rate = 0.0
            return
        self._rate = self.speed * self.generation.tokens_per_s / (len(self._running) + self.generation.half_batch)
        at = self.env.now + max(self._running[0][0] - self._clock, 0.0) / self._rate
        if at < self._due:
            # A later end than planned needs no new event: the planned one finds nothing done and plans again.
            self._call_at(at)

    def _call_at(self, at: float) -> None:
        self._due = at
        self.env.timeout(at - self.env.now, at).callbacks.append(self._woken)

    def _woken(self, event: simpy.Event) -> None:
        if event.value != self._due:
            return
        self._due = float("inf")
        self._advance()
        ended = []
        # What is left is less than the clock of a long run can tell: it would be planned for now, and again, without end.
        reached = self._clock * (1 + 1e-12) + 1e-9 + self._rate * 4 * math.ulp(self.env.now)
        while self._running and self._running[0][0] <= reached:
            ended.append(heapq.heappop(self._running)[2])
        if ended and not self._running:
            self.busy_changed(-1)
        self._plan()
        for episode in ended:
            self.decoded(episode)


class Fleet:
    """All engines. An episode goes to the least loaded one, of equals to the one with the lowest index."""

    def __init__(
        self,
        env: simpy.Environment,
        generation: Generation,
        decoded: Callable[[Episode], None],
        busy_changed: Callable[[int], None],
        size_changed: Callable[[int], None],
        rng: np.random.Generator,
    ) -> None:
        self.env, self.generation = env, generation
        self._decoded, self._busy_changed, self._size_changed, self._rng = decoded, busy_changed, size_changed, rng
        self.engines: dict[int, Engine] = {}
        self._queue: list[tuple[int, int]] = []
        self._next_index = 0
        self._factor = 1.0
        self._retired_tokens = 0.0

    def start(self, count: int) -> list[Engine]:
        started = []
        for _ in range(count):
            index, self._next_index = self._next_index, self._next_index + 1
            engine = Engine(
                self.env, index, self.generation, self._factor, self._decoded, self._busy_changed, self.env.now
            )
            if self.generation.stragglers:
                self.env.process(self._straggle(engine, self._rng.spawn(1)[0]))
            self.engines[index] = engine
            heapq.heappush(self._queue, (0, index))
            started.append(engine)
        self._size_changed(len(self.engines))
        return started

    def stop(self, engine: Engine, *, keep_tokens: bool = True) -> None:
        """Take an engine away. Its episodes go on elsewhere, from their tokens or from the start of the turn."""
        running = engine.stop()
        self._retired_tokens += engine.tokens
        del self.engines[engine.index]
        self._size_changed(len(self.engines))
        for episode, left in running:
            self.turn(episode, left if keep_tokens else episode.tokens)

    def turn(self, episode: Episode, tokens: float) -> None:
        """Sample one turn, on the episode's engine while that is there."""
        engine = episode.engine
        if engine is None or not engine.alive:
            engine = episode.engine = self._least_loaded()
            self._load(engine, +1)
        engine.add(episode, tokens)

    def leave(self, episode: Episode) -> None:
        """The episode has ended."""
        if episode.engine is not None and episode.engine.alive:
            self._load(episode.engine, -1)
        episode.engine = None

    def newest(self) -> Engine:
        return self.engines[max(self.engines)]

    def pause(self, seconds: float) -> None:
        for engine in self.engines.values():
            engine.pause(seconds)

    def set_factor(self, factor: float) -> None:
        """Speed of all engines, relative to the profile's."""
        if factor != self._factor:
            change, self._factor = factor / self._factor, factor
            for engine in self.engines.values():
                engine.set_speed(engine.speed * change)

    def sampled_tokens(self) -> float:
        """Of the whole run so far."""
        return self._retired_tokens + sum(engine.settle() for engine in self.engines.values())

    def _straggle(self, engine: Engine, rng: np.random.Generator) -> Generator[simpy.Event, object, None]:
        """Spells at half speed, as long as the engine lives."""
        share = self.generation.stragglers
        while engine.alive:
            yield self.env.timeout(rng.exponential(STRAGGLING_S * (1 - share) / share))
            if engine.alive:
                engine.set_speed(engine.speed / 2)
                yield self.env.timeout(rng.exponential(STRAGGLING_S))
            if engine.alive:
                engine.set_speed(engine.speed * 2)

    def _load(self, engine: Engine, change: int) -> None:
        engine.load += change
        heapq.heappush(self._queue, (engine.load, engine.index))

    def _least_loaded(self) -> Engine:
        while True:
            load, index = self._queue[0]
            engine = self.engines.get(index)
            if engine is not None and engine.load == load:
                return engine
            heapq.heappop(self._queue)
