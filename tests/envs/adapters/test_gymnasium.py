"""Gymnasium environments behind the environment protocol."""

import pytest

from envs.adapters.gymnasium import adapt, plain_text
from envs.protocol import Action, ToolCall
from rl_system.errors import UserError
from rl_system.records import Ending

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra `gymnasium`")

LAKE = {"is_slippery": False, "actions": ["left", "down", "right", "up"]}


def begun(environment, split="train", **settings):
    list_tasks, make_environment = adapt("examples.one", environment, **settings)
    made = make_environment(None, list_tasks(None, split)[0])
    made.reset()
    return made


def act(environment, *actions, name="act"):
    environment.step(Action(tool_calls=tuple(ToolCall(name, {"action": each}, str(i)) for i, each in enumerate(actions))))
    return environment.observe()


class Riddle(gymnasium.Env):
    """Observations and actions are words."""

    observation_space = gymnasium.spaces.Text(200)
    action_space = gymnasium.spaces.Text(20)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(2, 50))
        return f"What is {self.number} + 1?", {}

    def step(self, action):
        right = action == str(self.number + 1)
        return ("Right." if right else "Wrong."), float(right), right, False, {}


def test_an_agent_that_walks_the_right_way_earns_the_environments_reward():
    lake = begun("FrozenLake-v1", **LAKE)
    system, user = lake.observe().messages
    assert system["role"] == "system" and user["content"].startswith("\n[S]FFF")
    assert act(lake, "down", "down", "right").ended is None
    seen = act(lake, "right", "down", "right")
    assert seen.ended is Ending.AGENT_STOP and "HFF[G]" in seen.messages[-1]["content"]
    assert lake.score(seen.ended).reward == 1.0
    lake.close()


def test_what_follows_the_end_in_one_message_changes_nothing():
    lake = begun("FrozenLake-v1", **LAKE)
    lake.observe()
    seen = act(lake, "down", "right", "left", "left")  # the second falls into a hole
    assert seen.ended is Ending.AGENT_STOP and seen.errors == 0
    assert [message["content"][:20] for message in seen.messages[2:]] == ["The episode is over;"] * 2
    assert lake.score(seen.ended).reward == 0.0


@pytest.mark.parametrize("wrong", ["north", "9", -1, 1.5, None, True, ["down"], {}])
def test_what_is_no_action_is_told_to_the_agent_and_counted(wrong):
    lake = begun("FrozenLake-v1", **LAKE)
    lake.observe()
    seen = act(lake, wrong)
    assert seen.errors == 1 and seen.ended is None
    assert "no action; there are left, down, right, up" in seen.messages[0]["content"]


def test_a_call_of_another_tool_or_mere_words_are_told_to_the_agent():
    lake = begun("FrozenLake-v1", **LAKE)
    lake.observe()
    assert "there is no tool 'walk'" in act(lake, "down", name="walk").messages[0]["content"]
    lake.step(Action("I go down."))
    assert lake.observe().errors == 1


def test_words_as_observations_and_actions_pass_unchanged():
    riddle = begun(Riddle)
    question = riddle.observe().messages[1]["content"]
    answer = str(int(question.split()[2]) + 1)
    assert act(riddle, "no").messages[0]["content"] == "Wrong."
    assert act(riddle, answer).ended is Ending.AGENT_STOP
    assert riddle.score(Ending.AGENT_STOP).reward == 1.0


def test_a_task_is_a_seed_so_that_its_episodes_begin_alike():
    def question(index, split="train"):
        list_tasks, make_environment = adapt("examples.one", Riddle)
        made = make_environment(None, list_tasks(None, split)[index])
        made.reset()
        return made.observe().messages[1]["content"]

    assert question(0) == question(0)
    assert len({question(index) for index in range(8)}) > 1


def test_a_limit_of_steps_ends_an_episode_as_cut_short():
    lake = begun("FrozenLake-v1", max_episode_steps=2, **LAKE)
    lake.observe()
    assert act(lake, "left").ended is None
    assert act(lake, "left").ended is Ending.MAX_TURNS


@pytest.mark.parametrize(
    ("environment", "settings", "message"),
    [
        ("Pendulum-v1", {}, "no tool call can name"),
        ("FrozenLake-v1", {"actions": ["left", "right"]}, "names 2 actions"),
        ("CartPole-v1", {"split": "none"}, "has train, test"),
    ],
)
def test_what_cannot_be_adapted_is_refused_in_words(environment, settings, message):
    with pytest.raises(UserError, match=message):
        begun(environment, **settings)


def test_an_image_is_no_text():
    class Pictures(Riddle):
        observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), "uint8")

    with pytest.raises(UserError, match="no model reads"):
        begun(Pictures)
    assert begun(Pictures, describe=lambda picture: "a cat").observe().messages[1]["content"] == "a cat"


def test_what_a_terminal_highlights_stands_in_brackets():
    assert plain_text("\x1b[41mS\x1b[0mFFF [1, 2]") == "[S]FFF [1, 2]"


def test_a_module_that_adapts_is_an_environment_of_the_registry(tmp_path, monkeypatch):
    (tmp_path / "adapted").mkdir()
    (tmp_path / "adapted" / "__init__.py").touch()
    (tmp_path / "adapted" / "lake.py").write_text(
        "from envs.adapters.gymnasium import adapt\n"
        "list_tasks, make_environment = adapt(__name__, 'FrozenLake-v1', is_slippery=False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from envs.registry import list_tasks, make_environment
    from rl_system.config.environment import EnvironmentConfig

    config = EnvironmentConfig(name="adapted.lake")
    tasks = list_tasks(config, "test")
    assert len(tasks) == 64 and tasks[0].environment == "adapted.lake"
    made = make_environment(config, tasks[0])
    made.reset()
    assert "enum" in str(made.tools())
