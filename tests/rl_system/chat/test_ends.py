"""Whatever token ended a response: it is no part of what was said or called, and what follows it is a new turn."""

from functools import cache

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from envs.protocol import Action, Message, ToolCall
from rl_system.chat.renderer import Renderer
from rl_system.chat.tool_calls import MalformedCall, Response, write_calls
from tests.rl_system.chat.dialogues import make_byte_tokenizer

SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "<|eom_id|>", "<|python_tag|>"]  # fmt: skip
LLAMA3 = r"""{{- bos_token }}
{%- for message in messages %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
{%- if loop.first and tools %}{{- 'Tools: ' + tools | tojson + '\n\n' }}{% endif %}
{{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
"""In the manner of Llama 3: a turn ends in <|eot_id|>; models that call a tool may end in <|eom_id|>."""
OPENING: list[Message] = [{"role": "system", "content": "Be useful."}, {"role": "user", "content": "Hi."}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = ToolCall("f", {"user": "user_1"})
FORMATS = ["hermes", "qwen3", "llama3", "json"]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    made = make_byte_tokenizer(SPECIAL, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")
    made.chat_template = LLAMA3
    return made


def ids(*tokens: str) -> list[int]:
    return tokenizer().convert_tokens_to_ids(list(tokens))


def renderer(tool_format: str = "llama3", **more) -> Renderer:
    return Renderer(tokenizer(), tool_format=tool_format, **more)


def sampled(text: str, end: str) -> np.ndarray:
    return np.asarray([*tokenizer().encode(text, add_special_tokens=False), *ids(end)], np.int32)


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("end", ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"])
@pytest.mark.parametrize("eos_ids", [None, "in the files"])
def test_a_call_is_read_alone_whatever_token_ended_the_response(
    tool_format: str, end: str, eos_ids: str | None
) -> None:
    reader = renderer(tool_format, eos_ids=None if eos_ids is None else ids("<|eom_id|>"))
    assert reader.parse(sampled(write_calls([CALL], tool_format), end)) == Response("", "", (CALL,))
    assert reader.parse(sampled("Hello.", end)) == Response("", "Hello.", ())
    assert reader.text(sampled("Hello.", end)) == "Hello."


BROKEN = {
    "hermes": "{}\n<tool_call>\n{{broken\n</tool_call>",
    "qwen3": "{}\n<tool_call>\n{{broken\n</tool_call>",
    "llama3": "{}; {{broken",
    "json": '[{}, {{"name": 3}}]',
}
"""A good call and a broken one, by format."""


@pytest.mark.parametrize("end", ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"])
@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_broken_call_beside_a_good_one_is_one_and_the_end_none(tool_format: str, end: str) -> None:
    text = BROKEN[tool_format].format(write_calls([CALL], tool_format))
    good, broken = renderer(tool_format).parse(sampled(text, end)).calls
    assert good == CALL and isinstance(broken, MalformedCall) and end not in broken.reason


def test_a_python_tag_before_calls_is_no_end() -> None:
    text = f"<|python_tag|>{write_calls([CALL, CALL], 'llama3')}"
    assert renderer().parse(sampled(text, "<|eom_id|>")) == Response("", "", (CALL, CALL))


@pytest.mark.parametrize("tool_format", ["llama3", "json"])
def test_a_special_token_in_the_middle_is_still_part_of_the_text(tool_format: str) -> None:
    """It was sampled, and what a model does wrong is shown to it."""
    text = f"{write_calls([CALL], tool_format)}<|eom_id|> and more"
    response = renderer(tool_format).parse(sampled(text, "<|eot_id|>"))
    assert response.calls[0] == CALL
    assert isinstance(response.calls[-1], MalformedCall)
    said = renderer("hermes").parse(sampled("Hi <|eom_id|> there", "<|eot_id|>"))
    assert said.text == "Hi <|eom_id|> there"


@pytest.mark.parametrize("end", ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"])
def test_a_turn_has_one_end_the_one_that_was_sampled(end: str) -> None:
    dialogue = renderer().dialogue(OPENING, [TOOL])
    response = sampled(write_calls([CALL], "llama3"), end)
    longer = dialogue.extended(response, [{"role": "tool", "content": "done"}])
    assert longer.fresh_renderings == 0
    added = "<|start_header_id|>ipython<|end_header_id|>\n\ndone<|eot_id|>"
    added += "<|start_header_id|>assistant<|end_header_id|>\n\n"
    expected = [*dialogue.prompt_ids, *response, *tokenizer().encode(added, add_special_tokens=False)]
    assert longer.prompt_ids.tolist() == expected


def test_with_the_templates_own_end_the_prompt_is_what_the_template_writes() -> None:
    text = write_calls([CALL], "llama3")
    result: Message = {"role": "tool", "content": "done"}
    longer = renderer().dialogue(OPENING, [TOOL]).extended(sampled(text, "<|eot_id|>"), [result])
    whole = renderer().render([*OPENING, {"role": "assistant", "content": text}, result], [TOOL])
    assert tokenizer().decode(longer.prompt_ids) == whole
    assert longer.prompt_ids.tolist() == tokenizer().encode(whole, add_special_tokens=False)


def test_a_response_that_was_cut_gets_the_templates_end_also_behind_a_token_that_ends_nothing() -> None:
    """Known ends are those of the files: a header that was cut is none of them."""
    reader = renderer(eos_ids=ids("<|eom_id|>"))
    dialogue = reader.dialogue(OPENING, [])
    for cut in (sampled("Hello", "<|start_header_id|>"), sampled("Hello", "<|end_of_text|>")[:-1]):
        longer = dialogue.extended(cut, [{"role": "user", "content": "?"}])
        position = len(dialogue.prompt_ids) + len(cut)
        assert longer.prompt_ids[position] == reader.end_id == ids("<|eot_id|>")[0]


def test_what_ends_a_response_is_the_templates_end_the_tokenizers_and_the_files() -> None:
    assert renderer(eos_ids=ids("<|eom_id|>")).stop_ids == set(ids("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"))
    assert renderer(eos_ids=[]).stop_ids == set(ids("<|eot_id|>", "<|end_of_text|>"))
    assert set(ids(*SPECIAL)) <= renderer().stop_ids


def test_a_written_action_ends_as_the_template_ends_a_turn() -> None:
    assert renderer().write(Action(text="Hello."))[-1] == ids("<|eot_id|>")[0]
