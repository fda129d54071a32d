"""How each side's rate grows with its accelerators, from what it is made of.

A power law fitted at one split says nothing about another that is far away. What limits growth is known, though, and can be
measured at any split: on the trainers' side what every part of a batch repeats and what no further trainer shortens; on the
generating side episodes that sit in their tools and engines that are badly filled. `RateFit` learns what these shapes miss.
"""

from __future__ import annotations

from dataclasses import dataclass

HALF_BATCH = 16.0
"""Sequences at which an engine reaches half of its tokens/s: decoding b sequences takes t0 + b·t1 a token, so b of them get
1/t1 · b/(b + t0/t1). A guess of t0/t1; reading the weights costs about as much as so many sequences."""


def largest_part(parts: int, repeated: float) -> float:
    """Work of each of `parts` that a batch is cut into, relative to the whole, of which all repeat a share."""
    return repeated + (1.0 - repeated) / parts


def training_speedup(trainers: int, repeated: float, overhead: float) -> float:
    """Updates/s of `trainers` relative to one.

    repeated: share of a batch's work that every part repeats; see `largest_part`.
    overhead: time of an update that does not depend on their number, relative to the work of the whole batch.
    """
    one, several = (overhead + largest_part(number, repeated) for number in (1, trainers))
    return one / several


def overhead_of(seconds: float, overhead_s: float, trainers: int, repeated: float) -> float:
    """`overhead` of `training_speedup`, from an update of `seconds` by `trainers`, of which `overhead_s` were not work."""
    work_s = max(seconds - overhead_s, 1e-9 * seconds)
    return overhead_s * largest_part(trainers, repeated) / work_s


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Episodes that alternate between engines and tools.

    tools_s: seconds outside the engines for each unit of work, be it a sampled token or an episode. engine_s: a unit takes each
    of b sequences on an engine `engine_s · (b + half_batch)` seconds.
    """

    tools_s: float
    engine_s: float
    half_batch: float = HALF_BATCH

    def rate(self, accelerators: int, slots: float) -> float:
        """Units of work a second of `accelerators` with `slots` episodes at once.

        Of C episodes X = C/(Z + R) (interactive response time law) with R = u·(b + h), and b = X·R/n by Little's law.
        Eliminating X and b leaves R² + R·(Z − u·h − u·C/n) − u·h·Z = 0.
        """
        u, z, h = self.engine_s, self.tools_s, self.half_batch
        half = (z - u * (h + slots / accelerators)) / 2
        return slots / (z - half + (half * half + u * h * z) ** 0.5)
