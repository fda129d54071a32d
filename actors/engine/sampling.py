"""One request: from token ids to the engine's parameters, and from its output to a `Turn`.

Invariant: response ids, logprobs and versions are what the engine reported, token for token. A response whose versions
the engine did not report in full is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from actors.engine.requests import Answer
from actors.engine.versions import versions_of
from rl_system.allocation.handover import ABORTED, OVERDUE
from rl_system.records import Turn


FIRST_AND_LAST = 1 << 30
"""Tokens between two outputs of a request: there is one with the first token, and one with all others at the end."""


def sampling_parameters(
    *, temperature: float, max_new_tokens: int, stop_ids: Sequence[int], seed: int | None
) -> SamplingParams:
    """One sample with the sampled tokens' logprobs; at temperature 0 the likeliest token, logprobs at temperature 1.

    seed: of this sample's random numbers; None: the engine's next ones.
    """
    return SamplingParams(
        n=1,
        temperature=temperature,
        seed=seed,
        max_tokens=max_new_tokens,
        stop_token_ids=list(stop_ids),
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        stream_interval=FIRST_AND_LAST,
    )


def scoring_parameters() -> SamplingParams:
    """Logprobs of the prompt's own tokens. The engine cannot sample less than one token; it is thrown away."""
    return SamplingParams(
        n=1,
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def turn_of(prompt_ids: np.ndarray, answer: Answer) -> Turn:
    """The finished sample as a record. The stop token, where there is one, is the last token of the response."""
    samples = [part.outputs[0] for part in answer.parts]
    response = np.array([token for sample in samples for token in sample.token_ids], np.int32)
    logprobs = [logprob for sample in samples for logprob in sample.logprobs.logprobs]
    reason = str(samples[-1].finish_reason)
    return Turn(
        prompt_ids=prompt_ids,
        response_ids=response,
        logprobs=np.array(logprobs, np.float32),
        versions=versions_of(samples[-1].weight_versions, len(response)),
        finish_reason=OVERDUE if reason == ABORTED and answer.overdue else reason,
    )


def prompt_logprobs_of(answer: Answer) -> np.ndarray:
    """float32 [prompt]: logprob of each prompt token given those before it, 0 at position 0."""
    (output,) = answer.parts
    reported = output.prompt_logprobs
    logprobs = np.zeros(len(output.prompt_token_ids), np.float32)
    # Position 0 has no entry; every other position reports its own token first.
    logprobs[1:] = [reported.logprobs[start] for start in reported.start_indices[1:]]
    return logprobs
