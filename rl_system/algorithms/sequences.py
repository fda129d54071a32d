"""From an episode to training sequences, without touching a token.

Invariant: every sampled token of the episode is trained in exactly one sequence, in the context in which it was
sampled, with the logprob and the policy version that it was sampled with. Nothing is re-tokenised: a turn goes on in an
earlier sequence only where its prompt starts with that sequence token for token.

An episode is a tree of turns: an agent asks again, asks a helper, or goes on from an earlier point. Of turns that extend
the same sequence the first goes on in it; the others start sequences of their own, in which what they share with it is
context and not trained again. So does a turn whose history was rewritten, as templates that drop earlier thinking do. The
prefix tree shares all of that again.
"""

from __future__ import annotations

import numpy as np

from rl_system.algorithms.token_prefixes import TokenPrefixes
from rl_system.config.algorithm import Treatment
from rl_system.records import NO_VERSION, Ending, Episode, Sequence, Turn


def contributes(ended: Ending, truncated: Treatment) -> bool:
    """Whether an episode that ended so is trained on, and counts in its group's baseline.

    A failed episode says nothing about the policy. A truncated one is left out only under `mask`; then it is no member
    of the baseline either, or the others would be compared with a reward that was never earned.
    """
    return ended is not Ending.FAILED and (ended.finished or truncated != "mask")


def sequences_of(
    episode: Episode, advantage: float | np.ndarray = 0.0, *, truncated: Treatment = "zero_reward"
) -> list[Sequence]:
    """The training sequences of `episode`; none where it does not contribute or nothing was sampled.

    advantage: of the whole episode, or [turns], one for the response tokens of each turn. Loss weights are 1 on trained
    tokens, to be replaced by `set_loss_weights` once the batch is known.
    """
    if not contributes(episode.ended, truncated):
        return []
    per_turn = np.broadcast_to(np.asarray(advantage, np.float32), len(episode.turns))
    runs = sequence_runs(episode.turns)
    merged = (_merge([episode.turns[i] for i in run], per_turn[run]) for run in runs)
    return [sequence for sequence in merged if sequence.trained.any()]


def sequence_runs(turns: list[Turn]) -> list[list[int]]:
    """The turns of each sequence, by index: every turn goes on in the longest sequence that its prompt starts with, in
    the earliest of several, or starts a new one.
    """
    runs: list[list[int]] = []
    ends = TokenPrefixes()
    for index, turn in enumerate(turns):
        run = ends.pop_longest(turn.prompt_ids)
        if run is None:
            run = len(runs)
            runs.append([])
        runs[run].append(index)
        ends.add(run, turn.token_ids)
    return runs


def _merge(turns: list[Turn], advantages: np.ndarray) -> Sequence:
    """One sequence of turns that extend each other; the last turn's prompt and response are all of its tokens."""
    last = turns[-1]
    token_ids = last.token_ids
    n = len(token_ids)
    sequence = Sequence(
        token_ids=token_ids,
        trained=np.zeros(n, np.bool_),
        behaviour_logprobs=np.zeros(n, np.float32),
        versions=np.full(n, NO_VERSION, np.int32),
        advantages=np.zeros(n, np.float32),
        weights=np.zeros(n, np.float64),
    )
    for turn, advantage in zip(turns, advantages, strict=True):
        if len(turn.prompt_ids) == 0:
            raise ValueError("turn: the prompt is empty, so the first response token has no context")
        response = slice(len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.response_ids))
        sequence.trained[response] = True
        sequence.behaviour_logprobs[response] = turn.logprobs
        sequence.versions[response] = turn.versions
        sequence.advantages[response] = advantage
        sequence.weights[response] = 1.0
    return sequence
