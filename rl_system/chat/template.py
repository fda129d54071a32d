"""A model's chat template, and what it does, learnt by having it render small dialogues.

Templates are programs of other people: they may refuse a dialogue, for what reason they like. Each refusal is a
`CannotRender`, which also knows what the dialogue was and what can be done.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from envs.protocol import Message
from rl_system.errors import UserError
from rl_system.origin import said

STAND_IN = "Stand-in."
"""What an assistant says in dialogues that only ask the template something."""
QUESTION: Message = {"role": "user", "content": "Question."}
ANSWER: Message = {"role": "assistant", "content": STAND_IN}
ROLES_NAMED = 6
"""Most messages of a refused dialogue whose roles are told."""


class CannotRender(jinja2.TemplateError, ValueError):
    """The chat template does not take a dialogue: it refuses the order of its roles, or fails on what is in it."""

    def __init__(self, reason: str, advice: str) -> None:
        """reason: the template's own words. advice: the paragraph that a person gets before a run."""
        super().__init__(reason)
        self.advice = advice


class ChatTemplate:
    """The template of `tokenizer`, or `text` in its place."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._text = text

    def render(self, messages: list[Message], tools: list[dict[str, Any]], *, prompt: bool = True) -> str:
        """The dialogue as text. prompt: followed by what makes the model answer. Raises CannotRender."""
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=tools or None, chat_template=self._text, add_generation_prompt=prompt, tokenize=False
            )
        except Exception as error:  # Whatever the template does, the template did it.
            raise CannotRender(said(error), _advice(messages, tools, error)) from error

    def end_of_turn(self) -> str | None:
        """The special token that follows what an assistant says; None where there is none."""
        special = special_tokens(self._tokenizer)
        rendered = self.render([QUESTION, ANSWER], [], prompt=False)
        end = (
            special.search(rendered, rendered.rindex(STAND_IN) + len(STAND_IN))
            if special and STAND_IN in rendered
            else None
        )
        return end and end[0]

    def opens_thinking(self) -> bool:
        """Whether prompts end in the tag that opens the thinking."""
        return self.render([QUESTION], []).rstrip().endswith("<think>")


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Id of the token that ends an assistant's turn in the tokenizer's own template; None where that cannot be told."""
    if tokenizer.chat_template is None:
        return None
    try:
        end = ChatTemplate(tokenizer).end_of_turn()
    except CannotRender:
        return None
    return end and tokenizer.convert_tokens_to_ids(end)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    """Matches the special tokens of `tokenizer` in text, the longest that fits; None where it has none."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    special = sorted((token for token in added if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, special))) if special else None


def read_template(path: str | None) -> str | None:
    """The text of a template's file. Raises UserError where it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"model.chat_template {path!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"model.chat_template {path!r} cannot be read: it is no UTF-8 text ({error.reason})") from None


def _advice(messages: list[Message], tools: list[dict[str, Any]], error: Exception) -> str:
    roles = [message["role"] for message in messages]
    named = ", ".join(roles if len(roles) <= ROLES_NAMED else ["…", *roles[-ROLES_NAMED:]])
    cures = ["give one that takes it in model.chat_template (rl_system/chat/templates/hermes.jinja for a ChatML model)"]
    if "user" not in roles:
        cures.append("have a user speak first (environment.user.kind)")
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"model.chat_template: the model's chat template refuses a dialogue of the roles {named}"
        f"{' with tools' if tools else ''}: {reason!r}; {', or '.join(cures)}"
    )
