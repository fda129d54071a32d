"""From chat messages to token ids, exactly.

Invariant: ids that were once shown to or sampled by the model are never produced again from text. The next prompt of
a dialogue is the last prompt, the response as it was sampled, and the ids of the new messages alone.

Where the template itself rewrites history once new messages arrive (most reasoning templates drop the thinking of
earlier turns), the model must see the rewritten history: then, and only then, the prompt is rendered afresh. Special
tokens keep pieces of text apart in tokenisation, so two fresh renderings share their ids up to the first message that
differs.

Whether history is rewritten is asked of the template, not of the sampled text: every response is stood in for by a
short one of the same shape (with or without thinking), and the template must render the longer dialogue as an extension
of the shorter one. A response that is oddly spaced or malformed can therefore never break the extension.

Whatever comes from outside is made such that a tokenizer and a template take it, and that it can forge nothing: see
`_from_outside`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from envs.protocol import Action, Message
from rl_system.chat.template import ANSWER, QUESTION, STAND_IN, CannotRender, ChatTemplate, read_template, special_tokens
from rl_system.chat.tool_calls import Response, parse_response, write_calls
from rl_system.errors import UserError
from rl_system.strict_json import plain, to_json

COUNTED_CHARACTERS = 200_000
"""A text that is cut is tokenised up to here, a few tenths of a second, to say how many tokens are missing."""
RESULT: Message = {"role": "tool", "content": "Result.", "tool_call_id": "call_1"}
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}


class Renderer:
    """Tokenizer, chat template and tool format of one model. Immutable; shared by all dialogues of a process."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tool_format: str = "hermes",
        chat_template: str | None = None,
        eos_ids: Collection[int] | None = None,
    ) -> None:
        """chat_template: path of a Jinja file in place of the tokenizer's own. Raises UserError where there is none,
        or where it cannot render a dialogue with tools.

        eos_ids: what the model's files call an end beside the tokenizer's own and the template's end of turn; None: any
        special token may be.
        """
        self._tokenizer = tokenizer
        self._tool_format = tool_format
        self._template = ChatTemplate(tokenizer, read_template(chat_template))
        self._special = special_tokens(tokenizer)
        self._end_text = self._learn_end()
        self.opens_thinking = self._template.opens_thinking()
        self.end_id: int = tokenizer.convert_tokens_to_ids(self._end_text)
        """The token that ends the assistant's turn."""
        if eos_ids is None:
            eos_ids = [index for index, token in tokenizer.added_tokens_decoder.items() if token.special]
        ends = {self.end_id, tokenizer.eos_token_id, *eos_ids}
        self.stop_ids: frozenset[int] = frozenset(token for token in ends if token is not None)
        """The tokens that may end a response. Whichever did is no part of its text."""

    def dialogue(self, messages: list[Message], tools: list[dict[str, Any]]) -> Dialogue:
        """A dialogue that opens with `messages`."""
        return Dialogue(self, messages, tools)

    def parse(self, response_ids: np.ndarray) -> Response:
        """What the agent thought, said and called."""
        return self.parse_text(self.text(response_ids))

    def parse_text(self, text: str) -> Response:
        """The same of a response that is text already."""
        return parse_response(text, self._tool_format)

    @functools.cached_property
    def longest_token(self) -> int:
        """The most characters that one token stands for."""
        return max(map(len, self._tokenizer.get_vocab()))

    def text(self, response_ids: np.ndarray) -> str:
        """The response as text, without the token that ended it."""
        ids = response_ids[:-1] if self._ended(response_ids) else response_ids
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def token_texts(self, token_ids: np.ndarray) -> list[str]:
        """Every token as text by itself; where characters are made of several tokens, that is no whole character."""
        return [self._tokenizer.decode([token], skip_special_tokens=False) for token in token_ids.tolist()]

    def write(self, action: Action) -> np.ndarray:
        """Ids (int32) with which the model would do `action`: what a demonstration trains on."""
        calls = write_calls(action.tool_calls, self._tool_format)
        thinking = "\n</think>\n\n" if self.opens_thinking else ""
        text = thinking + "\n".join(filter(None, (action.text, calls)))
        return np.append(self.tokenize(self.defuse(text)), np.int32(self.end_id))

    def shorten(self, text: str, max_tokens: int) -> str:
        """`text`, or its first `max_tokens` tokens and a note that says how much is missing."""
        if len(text) <= max_tokens:
            return text
        text = plain(text)
        most = max(max_tokens * self.longest_token, COUNTED_CHARACTERS)
        if len(text) > most:
            kept = self._beginning(self.tokenize(text[:most]), max_tokens)
            return f"{kept}\n[cut here: {len(text) - len(kept)} more characters]"
        ids = self.tokenize(text)
        if len(ids) <= max_tokens:
            return text
        return f"{self._beginning(ids, max_tokens)}\n[cut here: {len(ids) - max_tokens} more tokens]"

    def _beginning(self, ids: np.ndarray, tokens: int) -> str:
        """Whole characters alone."""
        return self._tokenizer.decode(ids[:tokens], skip_special_tokens=False).rstrip("\ufffd")

    def tokenize(self, text: str) -> np.ndarray:
        """int32 [tokens]; nothing is added at either end."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), np.int32)

    def render(self, messages: list[Message], tools: list[dict[str, Any]], *, prompt: bool = True) -> str:
        """The template's text. prompt: followed by what makes the model answer. Raises CannotRender."""
        return self._template.render(messages, tools, prompt=prompt)

    def defuse(self, text: str) -> str:
        """Break up special tokens that stand literally in text from outside, so that it cannot end a turn or forge
        one."""
        if self._special is None:
            return text
        return self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def _ended(self, response_ids: np.ndarray) -> bool:
        return len(response_ids) > 0 and int(response_ids[-1]) in self.stop_ids

    def _learn_end(self) -> str:
        """The text of the end-of-turn token. Raises UserError for a template without one, or that refuses tools."""
        try:
            end = self._template.end_of_turn()
            self._template.render([QUESTION, ANSWER, RESULT], [TOOL])
        except CannotRender as refused:
            raise UserError(refused.advice) from None
        if end is None:
            raise UserError(
                "model.chat_template: the chat template ends an assistant's turn by no special token of the tokenizer, "
                "so that the end of a response cannot be recognised; use a template whose turns end in one"
            )
        return end


class Dialogue:
    """A dialogue as it stands. `prompt_ids` (int32) is what the model is to answer next.

    Never changes: an answer and what came then make another one, so that a dialogue can go on in several ways.
    """

    def __init__(self, renderer: Renderer, messages: list[Message], tools: list[dict[str, Any]]) -> None:
        self._renderer = renderer
        self._tools = _defused(renderer, plain(tools))
        self._messages = [_from_outside(renderer, message) for message in messages]
        self._shadow = self._messages
        """The same dialogue with a stand-in for each sampled response."""
        self._shadow_text: str | None = renderer.render(self._shadow, self._tools)
        """None once it was used: most dialogues go on once, and the text is as long as the dialogue."""
        self.prompt_ids = renderer.tokenize(self._shadow_text)
        self.fresh_renderings = 0
        """Turns so far that had to start from a full rendering because the template rewrote history."""

    def extended(self, response_ids: np.ndarray, messages: list[Message]) -> Dialogue:
        """The dialogue in which the model answered with `response_ids`, and then `messages` came."""
        renderer = self._renderer
        raw = renderer.text(response_ids)
        opened = "<think>\n" if renderer.opens_thinking else ""
        stand_in = _stand_in(opened, raw)
        new = [_from_outside(renderer, message) for message in messages]
        longer = object.__new__(Dialogue)
        longer._renderer, longer._tools = renderer, self._tools
        longer._messages = [*self._messages, {"role": "assistant", "content": opened + raw}, *new]
        longer._shadow = [*self._shadow, {"role": "assistant", "content": stand_in}, *new]
        longer._shadow_text = renderer.render(longer._shadow, self._tools)
        before = self._take_shadow_text() + stand_in.removeprefix(opened) + renderer._end_text
        longer.fresh_renderings = self.fresh_renderings
        if longer._shadow_text.startswith(before):
            end = [] if renderer._ended(response_ids) else [renderer.end_id]
            added = renderer.tokenize(longer._shadow_text[len(before) :])
            longer.prompt_ids = np.concatenate([self.prompt_ids, response_ids, end, added]).astype(np.int32)
        else:
            longer.prompt_ids = renderer.tokenize(renderer.render(longer._messages, self._tools))
            longer.fresh_renderings += 1
        return longer

    def shows_tools(self) -> bool:
        """Whether the model sees anything of the tools."""
        return self._renderer.render(self._messages, self._tools) != self._renderer.render(self._messages, [])

    def _take_shadow_text(self) -> str:
        text, self._shadow_text = self._shadow_text, None
        return text if text is not None else self._renderer.render(self._shadow, self._tools)


def _from_outside(renderer: Renderer, message: Message) -> Message:
    """`message` as a template and a tokenizer take it: plain data, whose content is a text that can be encoded."""
    return _defused(renderer, plain(message | {"content": _shown(message.get("content"))}))


def _shown(content: Any) -> str:
    """What a message says, as text: nothing, text, bytes, the texts that it is made of, or any other value as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, bytes | bytearray):
        return content.decode(errors="replace")
    if isinstance(content, list) and content and all(map(_is_text_part, content)):
        return "".join(_shown(part.get("text")) for part in content)
    return to_json(content)


def _is_text_part(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


def _defused(renderer: Renderer, value: Any) -> Any:
    """`value` with every text in it defused, also those of arguments of calls."""
    if isinstance(value, str):
        return renderer.defuse(value)
    if isinstance(value, dict):
        return {renderer.defuse(name): _defused(renderer, each) for name, each in value.items()}
    if isinstance(value, list):
        return [_defused(renderer, each) for each in value]
    return value


def _stand_in(opened: str, raw: str) -> str:
    """A short message that the template treats as it treats `opened + raw`."""
    thinking, closed, _ = raw.partition("</think>")
    if not closed:
        return opened + STAND_IN
    thought = "Thought." if thinking.replace("<think>", "").strip() else ""
    return f"<think>\n{thought}\n</think>\n\n{STAND_IN}"
