"""One request: from token ids to the engine's parameters, and from its output to a `Turn`.

Invariant: response ids, logprobs and versions are what the engine reported, token for token. A response whose versions
the engine did not report in full is an error, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from vllm import RequestOutput, SamplingParams
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind

from rl_system.records import Turn


def sampling_parameters(*, temperature: float, max_new_tokens: int, stop_ids: Sequence[int]) -> SamplingParams:
    """One sample with the sampled tokens' logprobs; at temperature 0 the likeliest token, logprobs at temperature 1."""
    return SamplingParams(
        n=1,
        temperature=temperature,
        max_tokens=max_new_tokens,
        stop_token_ids=list(stop_ids),
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
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


def turn_of(prompt_ids: np.ndarray, output: CompletionOutput) -> Turn:
    """The finished sample as a record. The stop token, where there is one, is the last token of the response."""
    response = np.asarray(output.token_ids, np.int32)
    return Turn(
        prompt_ids=prompt_ids,
        response_ids=response,
        logprobs=np.asarray(output.logprobs.logprobs, np.float32),
        versions=versions_of(output, len(response)),
        finish_reason=str(output.finish_reason),
    )


def versions_of(output: CompletionOutput, tokens: int) -> np.ndarray:
    """int32 [tokens]: the version that sampled each token, from the engine's spans `(version, start, end)`."""
    versions = np.empty(tokens, np.int32)
    covered = 0
    for span in output.weight_versions or []:
        if span.start != covered:
            break
        versions[span.start : span.end] = int(span.version)
        covered = span.end
    if covered != tokens:
        raise RuntimeError(f"the engine reported policy versions for {covered} of {tokens} sampled tokens")
    return versions


def prompt_logprobs_of(output: RequestOutput) -> np.ndarray:
    """float32 [prompt]: logprob of each prompt token given those before it, 0 at position 0."""
    reported = output.prompt_logprobs
    logprobs = np.zeros(len(output.prompt_token_ids), np.float32)
    # Position 0 has no entry; every other position reports its own token first.
    logprobs[1:] = [reported.logprobs[start] for start in reported.start_indices[1:]]
    return logprobs


def stop_token_ids(model_directory: Path) -> list[int]:
    """Ids that end a response: whatever the model's configuration files or its tokenizer call end of sequence or turn.

    Read from the files themselves, for the engine runs without a tokenizer.
    """
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = model_directory / name
        if path.exists():
            ids = json.loads(path.read_text()).get("eos_token_id")
            found |= set(ids) if isinstance(ids, list) else {ids}
    found |= {_tokenizer_eos(model_directory)}
    return sorted(found - {None})


def _tokenizer_eos(model_directory: Path) -> int | None:
    if not (model_directory / "tokenizer_config.json").exists():
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_directory).eos_token_id
