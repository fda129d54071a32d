"""The records that travel between actors.

NumPy arrays inside small dataclasses, so that Ray's object store shares them between processes without copies.
Arrays that come out of the object store are read-only: nobody writes into a record's array.

Position convention, everywhere: the value at position `t` of a per-token array belongs to the token *at* `t`. A token
is *trained* when the sampler drew it; its logprob is that of `token_ids[t]` given `token_ids[:t]`. The first token of
a sequence has no context and is therefore never trained.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

NO_VERSION = -1
"""Policy version of a token that no policy sampled (prompt, observation). Never enters a minimum."""
FULL_REWARD = 1.0 - 1e-6
"""From here on an episode counts as a success; τ²-bench's rewards are products of 0 and 1."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of an environment. `split` names the set that it was taken from."""

    environment: str
    domain: str
    task_id: str
    split: str


class Ending(enum.StrEnum):
    """Why an episode ended. The first two are the environment's word, the others the system's."""

    AGENT_STOP = "agent_stop"
    USER_STOP = "user_stop"
    MAX_TURNS = "max_turns"
    MAX_ERRORS = "max_errors"
    MAX_TOKENS = "max_tokens"
    """A response or the whole episode used up its token budget, or the model's context is full."""
    TIMEOUT = "timeout"
    AGENT_ERROR = "agent_error"
    """An agent that plays by itself raised, though every call of it was answered."""
    FAILED = "failed"
    """The environment or its host broke: an infrastructure error, never scored."""

    @property
    def finished(self) -> bool:
        """The dialogue came to its own end; anything else is a truncated episode."""
        return self in (Ending.AGENT_STOP, Ending.USER_STOP)


@dataclass(slots=True)
class Turn:
    """One call of the sampler: what went in, what came out, token for token.

    prompt_ids: int32 [prompt]; response_ids: int32 [response]; logprobs: float32 [response], natural log, under
    the distribution that was sampled from; versions: int32 [response], the policy version that sampled each token.
    finish_reason: "stop" or "length".
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: str

    def __post_init__(self) -> None:
        n = len(self.response_ids)
        if len(self.logprobs) != n or len(self.versions) != n:
            raise ValueError(
                f"turn: {n} response tokens, but {len(self.logprobs)} logprobs and {len(self.versions)} versions"
            )

    @property
    def token_ids(self) -> np.ndarray:
        """int32 [prompt + response]."""
        return np.concatenate([self.prompt_ids, self.response_ids]).astype(np.int32, copy=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode failed. of: what broke. what: one line, with the place where there is one. details: the traceback, or
    "" where there is none."""

    of: Literal["environment", "generation", "agent"]
    what: str
    details: str = ""


@dataclass(slots=True)
class Episode:
    """One rollout of one task, finished and scored.

    reward: the environment's reward, before any shaping. reward_parts: what it was made of, by name. failure: of one that
    FAILED, or whose agent raised.
    transcript: chat messages as plain dicts, for people. timings: seconds by name (`generate`, `environment`, `total`).
    parents: [turns], the earlier turn that each goes on from, −1 where from none; None: each goes on from the one before.
    turn_rewards: what single turns earned, by their index, where that was told.
    """

    task: Task
    group_id: int
    index: int
    turns: list[Turn]
    transcript: list[dict[str, Any]]
    reward: float
    reward_parts: dict[str, float]
    ended: Ending
    timings: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Events of the episode by name (`tool_calls`, `tool_errors`, `malformed_calls`)."""
    parents: list[int] | None = None
    turn_rewards: dict[int, float] = field(default_factory=dict)
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if self.parents is not None and not (
            len(self.parents) == len(self.turns) and all(-1 <= each < i for i, each in enumerate(self.parents))
        ):
            raise ValueError(f"episode: {len(self.turns)} turns cannot have the parents {self.parents}")
        if not all(0 <= index < len(self.turns) for index in self.turn_rewards):
            raise ValueError(f"episode: rewards for the turns {sorted(self.turn_rewards)} of {len(self.turns)}")

    @property
    def tree(self) -> list[int]:
        """`parents`, also where each turn goes on from the one before."""
        return list(range(-1, len(self.turns) - 1)) if self.parents is None else self.parents

    @property
    def solved(self) -> bool:
        """Whether it earned the full reward, before any shaping."""
        return self.reward >= FULL_REWARD


@dataclass(slots=True)
class Sequence:
    """One training sequence: token ids and, per token, what the loss needs. All arrays have length `[tokens]`.

    token_ids: int32; trained: bool; behaviour_logprobs: float32, 0 where not trained; versions: int32, `NO_VERSION`
    where not trained; advantages: float32; weights: float64, the factor of the token's loss, 0 where not trained.
    """

    token_ids: np.ndarray
    trained: np.ndarray
    behaviour_logprobs: np.ndarray
    versions: np.ndarray
    advantages: np.ndarray
    weights: np.ndarray

    def __post_init__(self) -> None:
        for each in fields(self):
            if len(getattr(self, each.name)) != len(self.token_ids):
                raise ValueError(f"sequence: {each.name} has another length than token_ids")
        if len(self.token_ids) and self.trained[0]:
            raise ValueError("sequence: the first token has no context and cannot be trained")

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class TrainBatch:
    """Sequences as flat arrays: sequence `i` is `[offsets[i]:offsets[i + 1]]` of each. Dtypes as in `Sequence`.

    The optional arrays are filled by the trainer when an objective needs them: proximal and reference logprobs
    (float32), critic values and returns (float32). `group_ids` [sequences] tells sequences of one group apart.
    """

    offsets: np.ndarray
    token_ids: np.ndarray
    trained: np.ndarray
    behaviour_logprobs: np.ndarray
    versions: np.ndarray
    advantages: np.ndarray
    weights: np.ndarray
    group_ids: np.ndarray
    proximal_logprobs: np.ndarray | None = None
    reference_logprobs: np.ndarray | None = None
    values: np.ndarray | None = None
    returns: np.ndarray | None = None

    @classmethod
    def of(cls, sequences: list[Sequence], group_ids: list[int] | None = None) -> TrainBatch:
        """Concatenate `sequences`. `group_ids` defaults to one group a sequence."""
        lengths = [len(sequence) for sequence in sequences]
        dtypes = {
            "token_ids": np.int32,
            "trained": np.bool_,
            "behaviour_logprobs": np.float32,
            "versions": np.int32,
            "advantages": np.float32,
            "weights": np.float64,
        }
        flat = {
            name: np.concatenate([np.asarray(getattr(s, name), dtype) for s in sequences] or [np.empty(0, dtype)])
            for name, dtype in dtypes.items()
        }
        ids = range(len(sequences)) if group_ids is None else group_ids
        return cls(
            offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
            group_ids=np.asarray(list(ids), np.int64),
            **flat,
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sequence_tokens(self) -> int:
        return int(self.offsets[-1])

    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray) -> TrainBatch:
        """The sequences `indices`, in that order, with every per-token array that is present."""
        indices = np.asarray(indices, np.int64)
        lengths = self.lengths()[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows = np.repeat(self.offsets[indices] - offsets[:-1], lengths) + np.arange(offsets[-1])
        per_token = {
            each.name: value[rows]
            for each in fields(self)
            if each.name not in ("offsets", "group_ids") and (value := getattr(self, each.name)) is not None
        }
        return replace(self, offsets=offsets, group_ids=self.group_ids[indices], **per_token)


@dataclass(frozen=True, slots=True)
class WeightChunk:
    """Some of a policy's parameters.

    content: a dict of name to array, or an object reference to it. identity: chunks of a run with the same one hold the
    same bits, so whoever has it need not get it again; empty: nothing is known.
    """

    content: Any
    identity: str = ""


@dataclass(slots=True)
class Weights:
    """All parameters of a policy under their Hugging Face names: in chunks, in the safetensors files of a directory, or yet
    to be broadcast.

    checksum: of all arrays of the chunks, empty where not computed. sender: whoever broadcasts them when asked to (an
    actor with `broadcast`), None where they are in chunks or a directory.
    """

    version: int
    chunks: list[WeightChunk] = field(default_factory=list)
    checksum: str = ""
    directory: str = ""
    sender: Any = None
