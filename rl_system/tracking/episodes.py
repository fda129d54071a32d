"""Episodes on disk: one JSON object a line, with the transcript for people and the token ids for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rl_system.algorithms.token_prefixes import TokenPrefixes
from rl_system.records import Episode
from rl_system.strict_json import replace_file, to_json


def write_episodes(
    path: Path,
    episodes: Sequence[Episode],
    advantages: np.ndarray | None = None,
    credits: Sequence[np.ndarray] | None = None,
    dropped: str | None = None,
) -> None:
    """Write `episodes` to `path`, complete or not at all, in place of what is there. advantages: [episodes], where they
    were compared; credits: of each, [turns], its turns' own. dropped: why nothing is trained on them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for position, episode in enumerate(episodes):
        line = as_json(episode)
        if advantages is not None:
            line["advantage"] = float(advantages[position])
        if credits is not None:
            for turn, credit in zip(line["turns"], credits[position], strict=True):
                turn["advantage"] = float(credit)
        if dropped is not None:
            line["dropped"] = dropped
        lines.append(to_json(line) + "\n")
    replace_file(path, "".join(lines))


def as_json(episode: Episode) -> dict[str, Any]:
    """Plain values. Of a turn's prompt only what follows the prompt and response of the turn `prompt_extends` is kept, where
    it starts with those of an earlier one. `goes_on_from`: its parent; null: none."""
    line = {
        "task": asdict(episode.task),
        "group_id": episode.group_id,
        "index": episode.index,
        "reward": episode.reward,
        "reward_parts": episode.reward_parts,
        "ended": episode.ended.value,
        "failure": None if episode.failure is None else {"of": episode.failure.of, "what": episode.failure.what},
        "transcript": episode.transcript,
        "timings": {name: round(seconds, 3) for name, seconds in episode.timings.items()},
        "counts": episode.counts,
        "turns": [],
    }
    earlier = TokenPrefixes()
    for index, (turn, parent) in enumerate(zip(episode.turns, episode.tree, strict=True)):
        extended = earlier.longest(turn.prompt_ids)
        kept_from = 0 if extended is None else len(episode.turns[extended].token_ids)
        line["turns"].append(
            {
                "goes_on_from": None if parent < 0 else parent,
                "prompt_extends": extended,
                "prompt_ids": turn.prompt_ids[kept_from:].tolist(),
                "response_ids": turn.response_ids.tolist(),
                "logprobs": [round(float(logprob), 6) for logprob in turn.logprobs],
                "versions": turn.versions.tolist(),
                "finish_reason": turn.finish_reason,
            }
        )
        earlier.add(index, turn.token_ids)
        if index in episode.turn_rewards:
            line["turns"][-1]["reward"] = episode.turn_rewards[index]
    return line
