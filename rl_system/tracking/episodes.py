"""Episodes on disk: one JSON object a line, with the transcript for people and the token ids for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rl_system.records import Episode


def write_episodes(path: Path, episodes: Sequence[Episode], advantages: np.ndarray | None = None) -> None:
    """Write `episodes` to `path`, replacing it. advantages: [episodes], where they were compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for position, episode in enumerate(episodes):
        line = as_json(episode)
        if advantages is not None:
            line["advantage"] = float(advantages[position])
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def as_json(episode: Episode) -> dict[str, Any]:
    """Plain values. A turn's prompt is kept as ids only where it does not extend the turn before it."""
    line = {
        "task": asdict(episode.task),
        "group_id": episode.group_id,
        "index": episode.index,
        "reward": episode.reward,
        "reward_parts": episode.reward_parts,
        "ended": episode.ended.value,
        "transcript": episode.transcript,
        "timings": {name: round(seconds, 3) for name, seconds in episode.timings.items()},
        "counts": episode.counts,
        "turns": [],
    }
    before = np.empty(0, np.int32)
    for turn in episode.turns:
        extends = len(before) > 0 and np.array_equal(turn.prompt_ids[: len(before)], before)
        line["turns"].append(
            {
                "prompt_extends_previous": extends,
                "prompt_ids": turn.prompt_ids[len(before) if extends else 0 :].tolist(),
                "response_ids": turn.response_ids.tolist(),
                "logprobs": [round(float(logprob), 6) for logprob in turn.logprobs],
                "versions": turn.versions.tolist(),
                "finish_reason": turn.finish_reason,
            }
        )
        before = np.concatenate([turn.prompt_ids, turn.response_ids])
    return line
