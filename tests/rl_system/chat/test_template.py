"""Templates that refuse something: one paragraph that says what, before any episode is played."""

import pytest

from rl_system.chat.rehearsal import rehearse
from rl_system.chat.renderer import Renderer
from rl_system.chat.template import CannotRender, end_of_turn_id
from rl_system.errors import UserError
from tests.rl_system.chat.dialogues import HERMES, make_byte_tokenizer, make_renderer, make_tokenizer

NEEDS_A_USER = (
    "{%- if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{- raise_exception('No user query found in messages.') }}{% endif %}" + HERMES
)
"""As newer Qwen templates do."""
NO_SYSTEM = (
    "{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{% endif %}" + HERMES
)
"""As Gemma's does."""
ALTERNATING = (
    "{%- set spoken = messages | rejectattr('role', 'equalto', 'system') | list %}"
    "{%- for message in spoken %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% endfor %}" + HERMES
)
"""As Mistral's do."""
ONE_RESULT = (
    "{%- for message in messages %}{% if message.role == 'tool' and not loop.first and "
    "messages[loop.index0 - 1].role == 'tool' %}"
    "{{- raise_exception('One result a turn') }}{% endif %}{% endfor %}" + HERMES
)
WITHOUT_TOOLS = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{% if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"
)
SOLO = [{"role": "system", "content": "The ticket."}]
SPOKEN = [*SOLO, {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "Hello."}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def test_a_template_that_needs_a_user_says_so_where_the_system_speaks_alone() -> None:
    renderer = make_renderer(NEEDS_A_USER)
    rehearse(renderer, SPOKEN, [TOOL], user=True)
    with pytest.raises(UserError) as refused:
        rehearse(renderer, SOLO, [TOOL], user=False)
    text = str(refused.value)
    assert "refuses a dialogue of the roles system with tools: 'No user query found in messages.'" in text
    assert text.startswith("model.chat_template: ") and "environment.user.kind" in text and "\n" not in text


def test_a_template_that_takes_no_system_prompt_says_so() -> None:
    with pytest.raises(UserError, match=r"the roles system, assistant, user with tools: 'System role not"):
        rehearse(make_renderer(NO_SYSTEM), SPOKEN, [TOOL], user=True)


def test_a_template_that_takes_no_tool_results_is_refused_before_a_dialogue() -> None:
    with pytest.raises(UserError, match="the roles user, assistant, tool with tools: 'Conversation roles must"):
        make_renderer(ALTERNATING)


def test_a_template_that_refuses_what_may_come_later_is_refused_by_the_rehearsal() -> None:
    renderer = make_renderer(ONE_RESULT)
    renderer.dialogue(SOLO, [TOOL])
    with pytest.raises(UserError, match="assistant, tool, assistant, tool, tool with tools: 'One result a turn'"):
        rehearse(renderer, SOLO, [TOOL], user=False)


def test_a_template_that_shows_no_tools_is_refused_where_there_are_some() -> None:
    renderer = make_renderer(WITHOUT_TOOLS)
    rehearse(renderer, SPOKEN, [], user=True)
    with pytest.raises(UserError, match=r"model\.chat_template.*does not show a dialogue's tools"):
        rehearse(renderer, SPOKEN, [TOOL], user=True)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ 'a' + 3 }}", "can only concatenate"),
        ("{{ messages | no_such_filter }}", "no_such_filter"),
        ("{% raise %}", "raise"),
    ],
)
def test_a_template_that_fails_in_any_way_is_one_paragraph(template: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"model\.chat_template: .*{said}") as refused:
        make_renderer(template)
    assert "\n" not in str(refused.value)


def test_a_long_dialogue_is_named_by_its_last_roles() -> None:
    renderer = make_renderer(ONE_RESULT)
    with pytest.raises(CannotRender, match="One result a turn") as refused:
        renderer.render([*SOLO, *[{"role": "user", "content": "?"}] * 9, *[{"role": "tool", "content": "r"}] * 2], [])
    assert "the roles …, user, user, user, user, tool, tool: 'One result a turn'" in refused.value.advice


def test_the_end_of_turn_is_told_where_it_can_be() -> None:
    assert end_of_turn_id(make_tokenizer()) == make_tokenizer().convert_tokens_to_ids("<|im_end|>")
    assert end_of_turn_id(make_tokenizer("{{ messages[0].content }}")) is None
    assert end_of_turn_id(make_tokenizer("{{ 1 / 0 }}")) is None


CHATML = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
)
LLAMA = (
    "{%- for message in messages %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{{- message.content | trim + '<|eot_id|>' }}{% endfor %}"
)
MISTRAL = (
    "{{- bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{- ' ' + message.content + eos_token }}{% else %}{{- '[INST] ' + message.content + '[/INST]' }}{% endif %}"
    "{%- endfor %}"
)


@pytest.mark.parametrize("eos", ["</s>", "<|endoftext|>", None])
@pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (LLAMA, "<|eot_id|>"), (MISTRAL, "</s>")])
def test_the_end_of_turn_is_the_templates_whatever_the_tokenizer_calls_the_end(
    template: str, end: str, eos: str | None
) -> None:
    special = ["<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
               "<|eot_id|>", "[INST]", "[/INST]"]  # fmt: skip
    tokenizer = make_byte_tokenizer(special, bos_token="<s>", **({} if eos is None else {"eos_token": eos}))
    tokenizer.chat_template = template.replace("eos_token", f"'{end}'")
    renderer = Renderer(tokenizer, eos_ids=[])
    ends = {tokenizer.convert_tokens_to_ids(token) for token in (end, eos) if token is not None}
    assert renderer.end_id == tokenizer.convert_tokens_to_ids(end) == end_of_turn_id(tokenizer)
    assert renderer.stop_ids == ends


def test_a_template_file_that_is_no_text_is_refused(tmp_path) -> None:
    (tmp_path / "t.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"model\.chat_template .*t\.jinja' cannot be read: it is no UTF-8"):
        Renderer(make_tokenizer(), chat_template=str(tmp_path / "t.jinja"))
