"""Which worker serves which episode.

Owns the routes from episodes to workers; it makes no call itself. An episode keeps to its worker, whose prefix cache
holds its earlier turns, for as long as that worker is healthy and gets its turns done. Load is counted in episodes and not in requests: an
episode that waits for its environment now is a request a moment later.

Invariants: no route leads to a worker that was removed. The same events in the same order give the same routes: ties go
to the lower index, never to hash order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class NoHealthyWorker(RuntimeError):
    """Every worker was removed; the caller waits until one is added."""


class Router:
    """Routes over workers known by their index."""

    def __init__(self, workers: Iterable[int] = ()) -> None:
        self._episodes: dict[int, set[Hashable]] = {worker: set() for worker in workers}
        self._routes: dict[Hashable, int] = {}

    @property
    def workers(self) -> list[int]:
        """Healthy workers, in the order of their index."""
        return sorted(self._episodes)

    def add(self, worker: int) -> None:
        """Route to `worker` from now on. Episodes stay where they are: moving them would cost their cached prefix."""
        self._episodes.setdefault(worker, set())

    def remove(self, worker: int) -> None:
        """Route nothing to `worker` any more; its episodes move with their next turn. Unknown workers are ignored."""
        for episode in self._episodes.pop(worker, ()):
            del self._routes[episode]

    def assign(self, episode: Hashable) -> int:
        """The worker for the next turn of `episode`: its own, else the least loaded. Raises NoHealthyWorker."""
        worker = self._routes.get(episode)
        if worker is None:
            if not self._episodes:
                raise NoHealthyWorker("no rollout worker is healthy")
            worker = self._route(episode, self._episodes)
        return worker

    def move(self, episode: Hashable) -> None:
        """Have the next turn of `episode` go to another worker than its own, the least loaded, where there is another."""
        own = self._routes.get(episode)
        others = [worker for worker in self._episodes if worker != own]
        if own is not None and others:
            self.release(episode)
            self._route(episode, others)

    def release(self, episode: Hashable) -> None:
        """`episode` is over: it loads no worker any more. Unknown episodes are ignored."""
        worker = self._routes.pop(episode, None)
        if worker is not None:
            self._episodes[worker].discard(episode)

    def load(self, worker: int) -> int:
        """Episodes that sample from `worker`."""
        return len(self._episodes[worker])

    def _route(self, episode: Hashable, workers: Iterable[int]) -> int:
        worker = min(workers, key=lambda each: (self.load(each), each))
        self._routes[episode] = worker
        self._episodes[worker].add(episode)
        return worker
