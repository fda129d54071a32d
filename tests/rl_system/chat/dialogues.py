"""A small tokenizer, chat templates, samplers that write what a test tells them to, and what must hold of all turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import rl_system.chat
from envs.host import EnvironmentHost
from rl_system.algorithms.sequences import sequences_of
from rl_system.chat.agent import Limits, run_episode
from rl_system.chat.renderer import Renderer
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Episode, Task, Turn

HERMES = (Path(rl_system.chat.__file__).parent / "templates" / "hermes.jinja").read_text()

DROPS_THINKING = r"""
{%- set state = namespace(last_user=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set state.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- if loop.index0 > state.last_user %}{% set content = '<think>\n' + thought + '\n</think>\n\n' + content %}{% endif %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
"""A reasoning template: the thinking of a turn is dropped once the user speaks again, as most of them do."""

OPENS_THINKING = DROPS_THINKING.replace(r"assistant\n' }}", r"assistant\n<think>\n' }}")
"""The same, with prompts that open the thinking themselves."""
assert OPENS_THINKING != DROPS_THINKING

WORDS = "the task user title completed pending arguments name tool_call Error create update status hello goodbye think"


@cache
def make_tokenizer(template: str = HERMES) -> PreTrainedTokenizerFast:
    """As below, with ChatML's special tokens."""
    special = ["<|im_start|>", "<|im_end|>"]
    fast = make_byte_tokenizer(special, bos_token=special[0], eos_token=special[1])
    fast.chat_template = template
    return fast


def make_byte_tokenizer(special: list[str], **roles: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 320 tokens that can encode any text, the first of them `special`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    # Special, also those that have no role: a tokenizer loaded from files knows them as such.
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def make_renderer(template: str = HERMES, tool_format: str = "hermes") -> Renderer:
    return Renderer(make_tokenizer(template), tool_format=tool_format)


def limits(**values: float) -> Limits:
    default = {
        "max_turns": 12,
        "max_errors": 5,
        "max_new_tokens": 512,
        "max_episode_tokens": 4096,
        "max_model_len": 16384,
        "max_observation_tokens": 1024,
        "timeout_s": 30.0,
    }
    return Limits(**(default | values))


class Writer:
    """A sampler that writes given texts one after another, as token ids with made-up logprobs and growing versions."""

    def __init__(self, renderer: Renderer, texts: Iterable[str], *, end: bool = True) -> None:
        self.renderer, self.texts, self.end = renderer, list(texts), end
        self.prompts: list[np.ndarray] = []

    async def __call__(self, prompt_ids: np.ndarray, max_new_tokens: int) -> Turn:
        self.prompts.append(prompt_ids)
        ids = self.renderer.tokenize(self.texts.pop(0))
        if self.end:
            ids = np.append(ids, np.int32(self.renderer.end_id))
        cut = ids[:max_new_tokens]
        n = len(self.prompts)
        return Turn(
            prompt_ids=prompt_ids,
            response_ids=cut,
            logprobs=-np.arange(1, len(cut) + 1, dtype=np.float32),
            versions=np.full(len(cut), n, np.int32),
            finish_reason="stop" if len(cut) == len(ids) else "length",
        )


def episode_of(
    config: EnvironmentConfig, task: Task, generate: Callable, renderer: Renderer, bounds: Limits
) -> Episode:
    """One episode in the real environment, in threads of this process."""

    async def run() -> Episode:
        async with EnvironmentHost(config) as host:
            return await run_episode(task, 3, 1, host.environment(task), generate, renderer, bounds)

    return asyncio.run(asyncio.wait_for(run(), 60))


def assert_trained_where_it_was_sampled(prompts: list[np.ndarray], responses: list[np.ndarray]) -> None:
    """Training sequences of the turns: every sampled token is trained once, in the context in which it was sampled.

    prompts: of each turn, and perhaps of the one to come.
    """
    sampled = [
        Turn(prompt, ids, np.arange(len(ids), dtype=np.float32) + 100 * i, np.full(len(ids), i, np.int32), "stop")
        for i, (prompt, ids) in enumerate(zip(prompts, responses, strict=False))
    ]
    episode = Episode(Task("e", "d", "t", "s"), 0, 0, sampled, [], 1.0, {}, Ending.USER_STOP)
    seen = []
    for sequence in sequences_of(episode):
        for position in np.flatnonzero(sequence.trained):
            turn = sampled[sequence.versions[position]]
            index = int(sequence.behaviour_logprobs[position]) - 100 * int(sequence.versions[position])
            assert position == len(turn.prompt_ids) + index
            assert sequence.token_ids[position] == turn.response_ids[index]
            assert np.array_equal(sequence.token_ids[: len(turn.prompt_ids)], turn.prompt_ids)
            seen.append((int(sequence.versions[position]), index))
    assert sorted(seen) == [(i, j) for i, turn in enumerate(sampled) for j in range(len(turn.response_ids))]
