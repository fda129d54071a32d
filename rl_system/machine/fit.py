"""Whether what a run needs of a node is there."""

from __future__ import annotations

from dataclasses import dataclass

from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.machine.needs import GIB, NodeNeeds
from rl_system.machine.resources import Resources

MIB = 1 << 20
OPEN_FILES = 4096
"""Fewer than Ray recommends for a cluster: its processes hold a connection to each other one."""
THREADS_BASE, THREADS_OF_AN_ACTOR, THREADS_OF_AN_ENVIRONMENT = 350, 90, 5
"""Processes and threads, which limits count alike, as measured: of Ray and the run's own actors, of a worker or trainer, of an environment
process."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is asked of a node, by a process there. settings: those that `needs` follow from, with their values."""

    needs: NodeNeeds
    settings: str

    def missing(self) -> str | None:
        """What this node lacks, as the end of a sentence that begins with it. None: nothing."""
        try:
            check_fit(self.needs, Resources.look(), "there", self.settings)
        except UserError as error:
            return f"has not enough room: {error}"
        return None


def check_fit(needs: NodeNeeds, node: Resources, where: str, settings: str) -> None:
    """Raise UserError unless `needs` fit what is left of `node`.

    where: as a sentence says it, such as `on node 10.0.0.2`. settings: those that `needs` follow from, with their values.
    """
    if needs.memory > node.memory:
        raise UserError(
            f"about {needs.memory / GIB:.1f} GiB of memory are needed {where}, and {node.memory_in_words}. In GiB, "
            f"{needs.in_words} ({settings}); use a smaller model or fewer workers"
        )
    if needs.shared_memory and needs.shared_memory > (node.shared_memory or 0):
        raise too_little_shared_memory(needs.shared_memory, node.shared_memory or 0, where)


def settings_of(config: RunConfig) -> str:
    """For `check_fit` of a run."""
    allocation, algorithm = config.allocation, config.algorithm
    return (
        f"model.path {config.model.path!r} in {config.model.dtype}, allocation.rollout {allocation.rollout}, "
        f"allocation.trainer {allocation.trainer}, allocation.mode {allocation.mode!r}, algorithm.advantage "
        f"{algorithm.advantage!r}, algorithm.kl_coefficient {algorithm.kl_coefficient:g}, rollout.engine.kv_cache_gib "
        f"{config.rollout.engine.kv_cache_gib}"
    )


def too_little_shared_memory(needed: int, free: int, where: str) -> UserError:
    """needed, free: bytes of /dev/shm."""
    return UserError(
        f"weights.transport 'object_store' needs {needed / MIB:.0f} MiB of shared memory {where}, but /dev/shm has "
        f"{free / MIB:.0f} MiB left; make it larger (containers: --shm-size) or use weights.transport 'directory'"
    )


def tight_spots(actors: int, node: Resources, config: RunConfig) -> list[str]:
    """What of `node` is likely to hurt a run that has so many workers and trainers there, in words: no mistakes, the run may
    get by."""
    words = []
    if node.open_files is not None and node.open_files < OPEN_FILES:
        words.append(f"this process may have {node.open_files} files open; Ray wants at least {OPEN_FILES} (ulimit -n)")
    threads = THREADS_BASE + THREADS_OF_AN_ACTOR * actors
    threads += THREADS_OF_AN_ENVIRONMENT * config.environment.processes
    if node.processes is not None and node.processes < threads:
        words.append(
            f"{node.processes} more processes and threads may be started here, and the run has about {threads} (ulimit -u; "
            "containers: --pids-limit)"
        )
    allocation, engine = config.allocation, config.rollout.engine
    computing = allocation.rollout * engine.threads + allocation.trainer * allocation.trainer_threads
    if config.model.device == "cpu" and actors == allocation.accelerators and computing > node.processors:
        words.append(
            f"{node.processors} processors may be used here, and rollout workers and trainers compute in {computing} threads "
            "(rollout.engine.threads, allocation.trainer_threads of each): they will slow each other down"
        )
    return words
