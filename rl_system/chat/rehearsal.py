"""Whether a chat template goes along with the dialogues of a run, asked before any is played.

A template that refuses a role or an order of roles would otherwise do so in the middle of some episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.protocol import Message
from rl_system.chat.renderer import RESULT, Dialogue, Renderer
from rl_system.chat.template import QUESTION, STAND_IN, CannotRender
from rl_system.errors import UserError


def rehearse(renderer: Renderer, messages: list[Message], tools: list[dict[str, Any]], *, user: bool) -> Dialogue:
    """The dialogue that opens with `messages`, once the template has rendered what may follow: results of one call and of
    several, and with `user` a user's answers.

    Raises UserError where it does not, and where it does not show the tools.
    """
    try:
        return _rehearsed(renderer, messages, tools, user)
    except CannotRender as refused:
        raise UserError(refused.advice) from None


def _rehearsed(renderer: Renderer, messages: list[Message], tools: list[dict[str, Any]], user: bool) -> Dialogue:
    dialogue = renderer.dialogue(messages, tools)
    if tools and not dialogue.shows_tools():
        raise UserError(
            "model.chat_template: the model's chat template does not show a dialogue's tools to the model; "
            "give one that does in model.chat_template (rl_system/chat/templates/hermes.jinja for a ChatML model)"
        )
    answer = np.append(renderer.tokenize(STAND_IN), np.int32(renderer.end_id))
    answers = ([[RESULT], [RESULT, RESULT]] if tools else []) + ([[QUESTION], [QUESTION]] if user else [])
    longer = dialogue
    for new in [*answers, *answers[:1]]:
        longer = longer.extended(answer, new)
    return dialogue
