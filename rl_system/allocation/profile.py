"""What a simulated pipeline is made of: a workload, what one accelerator does a second, and what a switch costs.

A profile is a YAML file, written by hand or filled in from a run's metrics. It says of every number where it comes
from: `sources` sorts the keys into published, measured, fitted and assumed ones, and a number that is in none of them
is an error. So a plan never rests on a figure whose origin nobody knows.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, model_validator

from rl_system.config.load import check, read_yaml
from rl_system.config.section import Section


class Workload(Section):
    """The episodes, and the algorithm's bounds on them."""

    group_size: int = Field(8, ge=1)
    groups_per_batch: int = Field(16, ge=1)
    max_staleness: int = Field(2, ge=0)
    concurrency: int = Field(128, ge=1)
    """Episodes at once."""
    sampled_tokens: float = Field(3000, gt=0)
    """Mean sampled tokens of an episode, over all turns."""
    sampled_spread: float = Field(0.5, ge=0)
    """Coefficient of variation between episodes: lognormal, half of the variance of the logarithm shared by a group."""
    tool_s: float = Field(10, ge=0)
    """Mean time of an episode outside the engines, over all turns."""
    tool_spread: float = Field(0.5, ge=0)
    turns: int = Field(1, ge=1)
    """Times that an episode alternates between engine and tools. In a closed network of processor-sharing and delay
    stations throughput depends on the total demands only (Baskett, Chandy, Muntz, Palacios 1975), so 1 is exact for
    mean rates and cheap; more turns make the staleness of single tokens and the latencies more life-like."""
    sequence_tokens: float = Field(100_000, gt=0)
    """Tokens that an episode of mean length adds to the batch's training sequences."""
    compression: float = Field(1, ge=1)
    """Sequence tokens per unique token of a batch."""
    dropped: float = Field(0, ge=0, lt=1)
    """Share of groups without signal."""
    broken: float = Field(0, ge=0, lt=1)
    """Share of episodes that break and are run again."""


class Generation(Section):
    """One accelerator of the rollout side."""

    tokens_per_s: float = Field(gt=0)
    """Sampled tokens a second with many sequences at once."""
    half_batch: float = Field(16, ge=0)
    """Sequences at which half of that is reached: b sequences get `tokens_per_s·b/(b + half_batch)` in all."""
    sync_s: float = Field(1, ge=0)
    """Pause of every engine when new weights arrive."""
    stragglers: float = Field(0, ge=0, lt=1)
    """Share of the time in which an engine runs at half speed, in spells of ten minutes."""
    failures_per_hour: float = Field(0, ge=0)
    """Of one accelerator. Its episodes begin again elsewhere; it is back after `switch.engine_start_s`."""


class Training(Section):
    """A way to train: speed of one accelerator, and what is lost when a batch is cut into parts."""

    tokens_per_s: float = Field(gt=0)
    """Sequence tokens a second on one accelerator, at the profile's compression."""
    repeated: float = Field(0, ge=0, lt=1)
    """Share f of a batch's work that every part repeats (shared prefixes, imbalance): n parts take `f + (1 − f)/n`. What is
    repeated is a path of the tree and does not grow with the batch, so of a batch s times as large the share is f/s."""
    overhead_s: float = Field(1, ge=0)
    """Of an update, whatever its size: reduction, optimizer, publication."""
    spread: float = Field(0.05, ge=0)
    """Coefficient of variation of an update's time."""
    shares_prefixes: bool = False
    """The work goes with unique tokens: more sharing makes it faster."""


class Switch(Section):
    """What a move costs."""

    engine_start_s: float = Field(60, ge=0)
    """Until a device that left the trainers generates."""
    release_s: float = Field(10, ge=0)
    """Until a device that left the router can train; its episodes go on elsewhere from their tokens."""
    rebuild_s: float = Field(15, ge=0)
    """Standstill of the trainers while their group is rebuilt at its new size."""
    lend_s: float = Field(8, ge=0)
    """For comparison: time to wake a sleeping engine on a trainer's device, and again to put it to sleep."""


class Sources(Section):
    """Dotted keys of the profile, by where their numbers come from."""

    published: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    fitted: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


class Profile(Section):
    name: str
    description: str = ""
    accelerators: int = Field(8, ge=2)
    """The cluster that `workload.groups_per_batch` and `workload.concurrency` are meant for; a plan for n times as many
    scales both by n."""
    workload: Workload
    generation: Generation
    training: dict[str, Training] = Field(min_length=1)
    """By method: `tree`, `dense`."""
    switch: Switch = Switch()
    sources: Sources = Sources()

    @model_validator(mode="after")
    def every_number_has_one_source(self) -> Profile:
        claimed = [key for names in self.sources.model_dump().values() for key in names]
        numbers = set(given_numbers(self))
        unknown, twice = set(claimed) - numbers, {key for key in claimed if claimed.count(key) > 1}
        if claimed and (unknown or twice or numbers - set(claimed)):
            raise ValueError(
                f"sources: every number that the profile gives is listed once; unknown {sorted(unknown)}, "
                f"listed twice {sorted(twice)}, missing {sorted(numbers - set(claimed))}"
            )
        return self

    def scaled(self, accelerators: int) -> Profile:
        """The profile for another cluster: batch and concurrency in proportion to its size (weak scaling); what every part
        of a batch repeats stays the same work.
        """
        factor = accelerators / self.accelerators
        workload = self.workload.model_copy(
            update={
                "groups_per_batch": max(1, round(self.workload.groups_per_batch * factor)),
                "concurrency": max(1, round(self.workload.concurrency * factor)),
            }
        )
        training = {
            method: each.model_copy(update={"repeated": min(each.repeated / factor, 1.0)})
            for method, each in self.training.items()
        }
        return self.model_copy(update={"accelerators": accelerators, "workload": workload, "training": training})


def given_numbers(section: BaseModel, prefix: str = "") -> list[str]:
    """Dotted keys of all numbers that were set explicitly, the cluster's size aside."""
    names = []
    for name in sorted(section.model_fields_set):
        value = getattr(section, name)
        entries = value if isinstance(value, dict) else {"": value}
        for entry, item in entries.items():
            key = f"{prefix}{name}.{entry}".rstrip(".")
            if isinstance(item, BaseModel) and name != "sources":
                names += given_numbers(item, f"{key}.")
            elif isinstance(item, int | float) and not isinstance(item, bool) and key != "accelerators":
                names.append(key)
    return names


def load_profile(path: Path) -> Profile:
    """Raises UserError."""
    return check(Profile, read_yaml(path), f"profile {path}")
