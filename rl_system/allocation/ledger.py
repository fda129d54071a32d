"""Which groups were started, at which policy version, and what became of them.

Owns the arithmetic of staleness. Owns no data, no task and no clock: it is told what happened and answers what may
happen next.

Definitions. `trained` is the number of policy updates made; `serving` is the version that every rollout worker has,
which follows `trained` with a delay. A group's staleness when it is trained on is `trained` minus the version that
sampled its oldest token, and that version is at least `serving` at the moment the group was started. A group is
*alive* while it is running, or finished and not yet trained on. With B groups a batch and a bound η:

1. At most `(serving + η + 1)·B` groups are ever alive or trained on together. Groups that were dropped do not count:
   they cannot be trained on.
2. A group started at version v may be trained on at `trained` ≤ v + η, its deadline. By (1) the groups alive, in the
   order in which they were started, always meet their deadlines if each batch takes the first B of them: the j-th
   (from 0) has a deadline of at least `trained + j // B`.
3. A batch takes the B finished groups that were started first, and may so overtake slow ones that are still running,
   but only if (2) still holds for those left behind. Otherwise it waits. Slow groups are waited for and not dropped,
   since dropping them would bias the policy towards short episodes.

So no token is ever older than η, nothing that was sampled is wasted, no schedule gets stuck, and η = 0 is strictly
on-policy training.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import Any


class GroupState(enum.StrEnum):
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class StartedGroup:
    """order: how many groups were started before it."""

    group_id: int
    version: int
    order: int
    state: GroupState = GroupState.RUNNING


class StalenessLedger:
    """See the module. `total_groups` bounds how many groups are trained on in the whole run (None: no bound)."""

    def __init__(self, groups_per_batch: int, max_staleness: int, total_groups: int | None = None) -> None:
        if groups_per_batch < 1 or max_staleness < 0:
            raise ValueError(f"ledger: groups_per_batch {groups_per_batch}, max_staleness {max_staleness}")
        self.groups_per_batch = groups_per_batch
        self.max_staleness = max_staleness
        self.total_groups = total_groups
        self.trained = 0
        self.serving = 0
        self.next_group_id = 0
        self.alive: dict[int, StartedGroup] = {}
        self.dropped: dict[str, int] = {}
        self.again: list[int] = []
        """Groups that were running when the state was taken that this ledger was restored from: started next."""
        self.finished = 0
        """Groups that wait to be trained on."""
        self._started = 0
        self._late: StartedGroup | None = None
        """The first of the groups that would become too old by the next batch, as long as that is known: groups that were
        started after it do not change that. So large runs do not look at all groups whenever one ends."""
        self.events = 0
        """Counts starts, ends and drops: a number that stands still tells that nothing happens any more."""

    @property
    def running(self) -> int:
        return len(self.alive) - self.finished

    def permits(self) -> int:
        """How many groups may be started now."""
        used = self.trained * self.groups_per_batch + len(self.alive)
        allowed = (self.serving + self.max_staleness + 1) * self.groups_per_batch
        if self.total_groups is not None:
            allowed = min(allowed, self.total_groups)
        return max(allowed - used, 0)

    def start(self) -> StartedGroup:
        if not self.permits():
            raise RuntimeError("ledger: a group was started without a permit")
        if self.again:
            group_id = self.again.pop(0)
        else:
            group_id, self.next_group_id = self.next_group_id, self.next_group_id + 1
        group = StartedGroup(group_id, self.serving, self._started)
        self._started += 1
        self.events += 1
        self.alive[group.group_id] = group
        return group

    def finish(self, group_id: int) -> None:
        group = self._running(group_id)
        group.state = GroupState.FINISHED
        self.finished += 1
        self._forget_late(group)
        self.events += 1

    def drop(self, group_id: int, reason: str) -> None:
        """The running group will not be trained on; its permit is free again."""
        self._forget_late(self._running(group_id))
        del self.alive[group_id]
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.events += 1

    def waits_for(self) -> str | None:
        """What keeps the next batch from being formed, in words; None when it can be."""
        missing = self.groups_per_batch - self.finished
        if missing > 0:
            return f"{missing} more finished group(s)"
        late = self._left_too_late(self._first_finished())
        return f"{len(late)} running group(s) that would become too old" if late else None

    def take_batch(self) -> list[int] | None:
        """The groups of the next batch, in the order in which they were started; None while it cannot be formed.

        The groups count as trained on from now on: `trained` is advanced.
        """
        if self.finished < self.groups_per_batch or self._late is not None:
            return None
        taken = self._first_finished()
        if late := self._left_too_late(taken):
            self._late = late[0]
            return None
        for group_id in taken:
            del self.alive[group_id]
        self.finished -= len(taken)
        self.trained += 1
        return taken

    def _first_finished(self) -> list[int]:
        # `alive` is in the order of starting: dicts keep it, and a group is entered once.
        finished = (group.group_id for group in self.alive.values() if group.state is GroupState.FINISHED)
        return list(itertools.islice(finished, self.groups_per_batch))

    def _left_too_late(self, taken: list[int]) -> list[StartedGroup]:
        """The groups that would miss their deadline if `taken` were trained on next and then the others in order."""
        going = set(taken)
        left = [group for group in self.alive.values() if group.group_id not in going]
        return [
            group
            for position, group in enumerate(left)
            if group.version + self.max_staleness < self.trained + 1 + position // self.groups_per_batch
        ]

    def _forget_late(self, ended: StartedGroup) -> None:
        if self._late is not None and ended.order <= self._late.order:
            self._late = None

    def serve(self, version: int) -> None:
        """Every rollout worker has `version` now."""
        if not self.serving <= version <= self.trained:
            raise ValueError(f"ledger: serving version {version} is outside [{self.serving}, {self.trained}]")
        self.serving = version

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs. Groups that are running now are started again after a resume, under their ids."""
        running = [g.group_id for g in self.alive.values() if g.state is GroupState.RUNNING]
        finished = {str(g.group_id): g.version for g in self.alive.values() if g.state is GroupState.FINISHED}
        return {
            "trained": self.trained,
            "serving": self.serving,
            "next_group_id": self.next_group_id,
            "finished": finished,
            "running": running + self.again,
            "dropped": dict(self.dropped),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, with the workers serving the version that was trained last."""
        self.trained = state["trained"]
        self.serving = state["trained"]
        self.next_group_id = state["next_group_id"]
        self.dropped = dict(state["dropped"])
        self.again = list(state["running"])
        self.alive = {
            int(group_id): StartedGroup(int(group_id), version, order, GroupState.FINISHED)
            for order, (group_id, version) in enumerate(state["finished"].items())
        }
        self.finished = self._started = len(self.alive)
        self._late = None

    def _running(self, group_id: int) -> StartedGroup:
        group = self.alive.get(group_id)
        if group is None or group.state is not GroupState.RUNNING:
            raise RuntimeError(f"ledger: group {group_id} is not running")
        return group
