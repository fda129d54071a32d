import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.viewer.api import Api, NotFound
from rl_system.viewer.trees import draw_tree
from tests.rl_system.viewer.world import make_run


def line(ids: list[int], advantage: float) -> dict:
    return {"advantage": advantage, "turns": [{"prompt_extends": None, "prompt_ids": ids[:1], "response_ids": ids[1:]}]}


SEQUENCES = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.floats(-2, 2)), min_size=1, max_size=8
)


@given(SEQUENCES)
@settings(max_examples=100, deadline=None)
def test_a_drawn_tree_has_every_prefix_once_with_all_that_pass_through(sequences):
    lines = [(str(at), line(ids, advantage)) for at, (ids, advantage) in enumerate(sequences)]
    found = draw_tree(lines, None, None, 1000)
    prefixes = {tuple(ids[:n]) for ids, _ in sequences for n in range(1, len(ids) + 1)}
    assert found["unique_tokens"] == len(prefixes) == sum(node["tokens"] for node in found["nodes"])
    for node in found["nodes"]:
        assert len(node["episodes"]) == node["sequences"]
        passing = [sequences[int(key)] for key in node["episodes"]]
        begin, end = node["from"], node["from"] + node["tokens"]
        ids = tuple(map(int, node["text"].split()))
        assert all(tuple(each[begin : begin + 1]) == ids[:1] for each, _ in passing)
        assert any(tuple(each[begin:end]) == ids for each, _ in passing)
        prefix = passing[0][0][: begin + 1]
        assert node["sequences"] == sum(each[: begin + 1] == prefix for each, _ in sequences)
        assert node["advantage"] == pytest.approx(sum(value for _, value in passing) / len(passing), abs=1e-8)


@given(SEQUENCES, st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_what_a_budget_leaves_of_a_tree_hangs_together_and_says_what_is_missing(sequences, budget):
    lines = [(str(at), line(ids, advantage)) for at, (ids, advantage) in enumerate(sequences)]
    whole, part = draw_tree(lines, None, None, 1000), draw_tree(lines, None, None, budget)
    kept = {node["id"] for node in part["nodes"]}
    assert len(kept) == min(budget, len(whole["nodes"]))
    assert all(node["parent"] in kept or node["parent"] == -1 for node in part["nodes"])
    for node in part["nodes"]:
        children = [each["id"] for each in whole["nodes"] if each["parent"] == node["id"]]
        assert node["left_out"] == len([each for each in children if each not in kept])


def test_a_tree_of_a_step_is_of_what_it_trained_on(tmp_path):
    make_run(tmp_path)
    api = Api([tmp_path], cache=tmp_path)
    api._run("run").refresh(wait=True)
    found = api.tree("run", "steps", 2)
    assert found == api.tree("run", "groups", 2) and found["sequences"] == 3
    assert found["nodes"][0]["tokens"] == 6 and found["nodes"][0]["sequences"] == 3
    below = api.tree("run", "steps", 2, root=str(found["nodes"][1]["id"]))
    assert below["path"] == [0] and len(below["nodes"]) == 1
    for wrong in ({"number": 99}, {"number": 2, "root": "77"}):
        with pytest.raises(NotFound):
            api.tree("run", "steps", **wrong)
