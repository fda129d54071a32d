"""One session: token exactness, its limits, and what is left of it."""

import asyncio
import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.chat.agent import GenerationFailed
from rl_system.endpoint.refusals import Refused, SamplingFailed
from rl_system.records import Turn
from tests.rl_system.chat.dialogues import (
    DROPS_THINKING,
    HERMES,
    OPENS_THINKING,
    assert_trained_where_it_was_sampled,
    make_renderer,
)
from tests.rl_system.endpoint.clients import Engine, ask, sent_back, session, system, user, written

OPENING = [system("You help."), user("Hi.")]
CALLS = '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": [2.0, "é"]}}\n</tool_call>'
TWO_CALLS = CALLS + '\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


@pytest.mark.parametrize("text", ["Hello.", "  spaced  out \n", "", CALLS, f"Well.\n{TWO_CALLS}", "<think>\nhm\n</think>\n\nYes."])
@pytest.mark.parametrize("ids", [True, False])
def test_what_is_sent_back_as_it_was_given_stands_in_the_next_prompt_as_it_was_sampled(text, ids):
    renderer = make_renderer()
    engine = Engine(written(renderer, text, "Done."))
    calls = session(engine, renderer)

    async def body():
        first = await calls.call(ask(OPENING))
        second = await calls.call(ask([*OPENING, sent_back(first, ids=ids), user("And?")]))
        return first, second

    first, second = run(body())
    assert second.parent is first and not second.edited
    assert np.array_equal(second.turn.prompt_ids[: len(first.turn.token_ids)], first.turn.token_ids)
    assert calls.counts["edited_histories"] == calls.counts["fresh_renderings"] == 0


def test_thinking_that_does_not_come_back_is_still_in_the_prompt_and_other_thinking_is_an_edit():
    renderer = make_renderer()
    thinking = "<think>\nIt depends.\n</think>\n\nYes."
    engine = Engine(written(renderer, thinking, "a", "b", "c"))
    calls = session(engine, renderer)

    async def body():
        first = await calls.call(ask(OPENING))
        without, given = ({**sent_back(first), "reasoning": reasoning} for reasoning in ("", "It depends."))
        other = {**sent_back(first), "reasoning": "It does not depend."}
        return first, [await calls.call(ask([*OPENING, answer, user("And?")])) for answer in (without, given, other)]

    first, (without, given, other) = run(body())
    assert (first.answer.thinking, first.answer.text) == ("It depends.", "Yes.")
    assert without.parent is given.parent is first and np.array_equal(without.turn.prompt_ids, given.turn.prompt_ids)
    assert other.parent is None and other.edited
    assert "It does not depend." in renderer._tokenizer.decode(other.turn.prompt_ids)


@pytest.mark.parametrize(
    "change",
    [
        lambda messages: messages[2].update(content="Hello!"),
        lambda messages: messages[0].update(content="You help much."),
        lambda messages: messages.pop(1),
        lambda messages: messages.insert(2, user("By the way.")),
    ],
)
def test_a_client_that_edits_history_gets_a_fresh_rendering_and_is_counted(change):
    renderer = make_renderer()
    calls = session(Engine(written(renderer, "Hello.", "x")), renderer)

    async def body():
        first = await calls.call(ask(OPENING))
        messages = [*copy.deepcopy(OPENING), sent_back(first), user("And?")]
        change(messages)
        return messages, await calls.call(ask(messages))

    messages, second = run(body())
    assert second.edited and second.parent is None and calls.counts["edited_histories"] == 1
    plain = [{name: value for name, value in message.items() if name != "reasoning"} for message in messages]
    assert np.array_equal(second.turn.prompt_ids, renderer.dialogue(plain, ask([]).tools).prompt_ids)


def test_asking_again_a_helper_and_a_summary_are_branches_and_no_edits():
    renderer = make_renderer()
    calls = session(Engine(written(renderer, *"abcdef")), renderer)

    async def body():
        first = await calls.call(ask(OPENING))
        again = await calls.call(ask(OPENING))
        helper = await calls.call(ask([system("You are a helper."), user("Help.")]))
        on = await calls.call(ask([*OPENING, sent_back(first), user("And?")]))
        branch = await calls.call(ask([*OPENING, sent_back(first), user("Or?")]))
        summary = await calls.call(ask([OPENING[0], user("Hi. We have spoken of much.")]))
        return [first, again, helper, on, branch, summary]

    made = run(body())
    assert [call.parent and made.index(call.parent) for call in made] == [None, None, None, 0, 0, None]
    assert (calls.counts["edited_histories"], calls.counts["branches"]) == (0, 1)
    record = run(calls.close())
    assert record.parents == [-1, -1, -1, 0, 0, -1]
    assert record.completions == [call.completion_id for call in made] and len(set(record.completions)) == 6


def test_other_tools_are_another_dialogue():
    renderer = make_renderer()
    calls = session(Engine(written(renderer, *"ab")), renderer)

    async def body():
        first = await calls.call(ask(OPENING))
        return await calls.call(ask([*OPENING, sent_back(first), user("And?")], tools=[]))

    second = run(body())
    assert second.parent is None and second.edited


def test_of_calls_that_said_the_same_the_one_is_meant_whose_ids_come_back():
    renderer = make_renderer()
    calls = session(Engine(written(renderer, CALLS, CALLS, "x", "y")), renderer)

    async def body():
        made = [await calls.call(ask(OPENING)) for _ in range(2)]
        return made, [await calls.call(ask([*OPENING, sent_back(call), user("?")])) for call in reversed(made)]

    (first, second), (of_second, of_first) = run(body())
    assert of_second.parent is second and of_first.parent is first
    assert first.answer.calls[0].call_id != second.answer.calls[0].call_id


def test_a_call_that_cannot_be_read_is_given_as_words_and_comes_back_as_them():
    renderer = make_renderer()
    broken = "Let me see. <tool_call>\n{broken\n</tool_call>"
    calls = session(Engine(written(renderer, broken, "x")), renderer)

    async def body():
        first = await calls.call(ask(OPENING))
        return first, await calls.call(ask([*OPENING, sent_back(first), user("?")]))

    first, second = run(body())
    assert (first.answer.text, first.answer.calls, first.answer.finish) == (broken, (), "stop")
    assert second.parent is first and calls.counts["malformed_calls"] == 1


def test_where_no_calls_are_wanted_what_looks_like_one_is_words():
    renderer = make_renderer()
    calls = session(Engine(written(renderer, CALLS, CALLS)), renderer)
    forbidden = run(calls.call(ask(OPENING, calls=False)))
    without_tools = run(calls.call(ask(OPENING, tools=[])))
    assert forbidden.answer.text == without_tools.answer.text == CALLS
    assert calls.counts["malformed_calls"] == calls.counts["tool_calls"] == 0


STOPS = [("Observation:", "Thought. Observation: sunny", "Thought. "), ("é", "caf\u00e9 au lait", "caf"), ("\n\n", "a\n\n\n", "a")]


@pytest.mark.parametrize(("stop", "text", "shown"), STOPS)
def test_a_stop_text_ends_the_turn_at_the_token_that_completes_it(stop, text, shown):
    renderer = make_renderer()
    calls = session(Engine(written(renderer, text, "x")), renderer)

    async def body():
        first = await calls.call(ask(OPENING, stop=("never", stop)))
        return first, await calls.call(ask([*OPENING, sent_back(first), user("?")]))

    first, second = run(body())
    whole = written(renderer, text)[0]
    kept = first.turn.response_ids
    assert (first.answer.text, first.answer.finish, first.answer.stop_text) == (shown.strip(), "stop_text", stop)
    assert np.array_equal(kept, whole[: len(kept)]) and len(first.turn.logprobs) == len(first.turn.versions) == len(kept)
    assert stop in renderer.text(kept) and stop not in renderer.text(kept[:-1])
    # What followed the stop text is in no prompt: the engine might as well have stopped there.
    expected = [*first.turn.token_ids.tolist(), renderer.end_id]
    assert second.parent is first and second.turn.prompt_ids[: len(expected)].tolist() == expected


stop_texts = st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]), min_size=1, max_size=3)
"""Without the character that stands for the beginning of an unfinished one."""


@settings(max_examples=100)
@given(st.text(max_size=40), st.lists(stop_texts, min_size=1, max_size=3))
def test_a_stop_text_cuts_as_reading_token_by_token_does(text, stops):
    renderer = make_renderer()
    engine = Engine(written(renderer, renderer.defuse(text)))
    call = run(session(engine, renderer).call(ask([user("Hi.")], tools=[], stop=tuple(stops))))
    whole = engine.done[0][1]
    cuts = [k for k in range(1, len(whole) + 1) if any(stop in renderer.text(whole[:k]) for stop in stops)]
    assert len(call.turn.response_ids) == (cuts[0] if cuts else len(whole))
    assert (call.answer.stop_text is not None) == bool(cuts)


def test_a_call_takes_no_more_tokens_than_client_run_and_context_allow():
    renderer = make_renderer()
    engine = Engine(written(renderer, *["a b c d e f g h"] * 4))
    calls = session(engine, renderer, max_new_tokens=6, max_episode_tokens=9, max_model_len=400)

    async def body():
        first = await calls.call(ask(OPENING, max_tokens=4))
        second = await calls.call(ask(OPENING, max_tokens=100))
        with pytest.raises(Refused) as refused:
            await calls.call(ask(OPENING))
        return first, second, refused.value

    first, second, refused = run(body())
    assert [each["max_new_tokens"] for each in engine.asked] == [4, 5]
    assert first.answer.finish == second.answer.finish == "length"
    assert (refused.status, refused.code) == (403, "episode_budget_exhausted") and "max_episode_tokens" in refused.message
    assert calls.counts["refused_max_tokens"] == 1 and calls.counts["calls"] == 2


def test_more_calls_than_a_run_allows_are_refused():
    renderer = make_renderer()
    calls = session(Engine(written(renderer, "a", "b")), renderer, max_turns=1)
    run(calls.call(ask(OPENING)))
    with pytest.raises(Refused, match=r"environment\.max_turns"):
        run(calls.call(ask(OPENING)))
    assert run(calls.close()).counts["refused_max_turns"] == 1


@pytest.mark.parametrize("characters", [2_000, 200_000, 20_000_000])
def test_a_prompt_that_does_not_fit_is_refused_and_the_session_goes_on(characters):
    renderer = make_renderer()
    calls = session(Engine(written(renderer, "a")), renderer, max_model_len=300)
    with pytest.raises(Refused) as refused:
        run(calls.call(ask([user("x" * characters)])))
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert run(calls.call(ask(OPENING))).answer.text == "a"


def test_messages_that_the_template_refuses_are_refused_with_its_words():
    strict = HERMES.replace("{%- for message in dialogue %}", "{%- for message in dialogue %}{% if message.role == 'tool' %}{{ raise_exception('no call before') }}{% endif %}")
    renderer = make_renderer("{% if tools %}" + HERMES + "{% else %}" + strict + "{% endif %}")
    calls = session(Engine(written(renderer, "a")), renderer)
    with pytest.raises(Refused, match="no call before"):
        run(calls.call(ask([{"role": "tool", "content": "r"}], tools=[])))
    assert run(calls.call(ask(OPENING))).answer.text == "a"


def test_when_no_engine_answers_the_session_remembers_that_it_failed():
    async def broken(*_, **__) -> Turn:
        raise GenerationFailed("all gone")

    calls = session(Engine([]))
    calls.sample = broken
    with pytest.raises(SamplingFailed, match="all gone"):
        run(calls.call(ask(OPENING)))
    assert run(calls.close()).failure == "all gone"


def test_a_call_that_its_client_gives_up_is_taken_out_of_the_engine():
    renderer = make_renderer()

    async def body():
        engine = Engine(written(renderer, "a", "b"), asyncio.Event())
        calls = session(engine, renderer)
        given_up = asyncio.create_task(calls.call(ask(OPENING)))
        await asyncio.sleep(0.01)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        engine.gate.set()
        await calls.call(ask(OPENING))
        return engine, await calls.close()

    engine, record = run(body())
    assert engine.cancelled == 1 and len(record.turns) == 1
    assert (record.counts["cancelled_calls"], record.counts["calls"]) == (1, 2)


def test_the_end_of_an_episode_takes_its_calls_out_of_the_engine_and_refuses_later_ones():
    renderer = make_renderer()

    async def body():
        engine = Engine(written(renderer, "a", "b"), asyncio.Event())
        calls = session(engine, renderer)
        waiting = [asyncio.create_task(calls.call(ask(OPENING))) for _ in range(3)]
        await asyncio.sleep(0.01)
        record = await calls.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(Refused):
            await calls.call(ask(OPENING))
        return engine, record, outcomes

    engine, record, outcomes = run(body())
    assert engine.cancelled == 3 and record.turns == []
    assert [outcome.status for outcome in outcomes] == [401] * 3


def test_what_order_calls_came_in_does_not_show_in_an_ordered_record():
    renderer = make_renderer()

    async def body(order: list[int]):
        answers = {text: ids for text, ids in zip("uvw", written(renderer, *"xyz"), strict=True)}
        calls = session(Engine([]), renderer, ordered=True)

        async def by_prompt(prompt_ids, max_new_tokens, *, repeat, seed, stop):
            text = renderer._tokenizer.decode(prompt_ids)
            ids = next(ids for word, ids in answers.items() if f"user\n{word}" in text)
            return Turn(prompt_ids, ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")

        calls.sample = by_prompt
        made = {}
        for index in order:
            made[index] = await calls.call(ask([user("uvw"[index])]))
        for index in order:
            await calls.call(ask([user("uvw"[index]), sent_back(made[index]), user("more")]))
        return await calls.close()

    one, other = run(body([0, 1, 2])), run(body([2, 0, 1]))
    assert one.parents == other.parents and one.completions == other.completions and one.transcript == other.transcript
    assert all(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(one.turns, other.turns, strict=True))


def test_the_same_prompt_asked_again_is_told_apart_for_its_seed():
    renderer = make_renderer()
    engine = Engine(written(renderer, *"abc"))
    calls = session(engine, renderer)
    for seed in (None, 7, None):
        run(calls.call(ask(OPENING, seed=seed)))
    assert [(each["repeat"], each["seed"]) for each in engine.asked] == [(0, None), (1, 7), (2, None)]


def test_the_transcript_tells_who_called_what_it_extended_and_what_branched_off():
    renderer = make_renderer()
    calls = session(Engine(written(renderer, CALLS, "b", "c")), renderer)

    async def body():
        first = await calls.call(ask(OPENING, protocol="chat", caller="planner"))
        result = {"role": "tool", "content": "4", "tool_call_id": first.answer.calls[0].call_id}
        await calls.call(ask([*OPENING, sent_back(first), result], protocol="chat"))
        await calls.call(ask([*OPENING, sent_back(first), user("Never mind.")], protocol="chat"))
        return await calls.close()

    lines = run(body()).transcript
    assert [(line["call"], line["role"]) for line in lines] == [
        (0, "system"), (0, "user"), (0, "assistant"), (1, "tool"), (1, "assistant"), (2, "user"), (2, "assistant"),
    ]  # fmt: skip
    answers = [line for line in lines if line["role"] == "assistant"]
    assert [line["goes_on_from"] for line in answers] == [None, 0, 0]
    assert [line.get("branches_off", False) for line in answers] == [False, False, True]
    assert answers[0]["caller"] == "planner" and answers[0]["tool_calls"][0]["function"]["name"] == "f"


# Random graphs of calls against the rule as it is said.

texts = st.sampled_from(["Hello.", "", " Yes \n", CALLS, TWO_CALLS, "<think>\nhm\n</think>\n\nNo.", "<tool_call>broken", "no end"])


class PlainSession:
    """The oracle: keeps every dialogue of every call as the client wrote it, and compares them one by one."""

    def __init__(self, renderer, tools) -> None:
        self.renderer, self.tools = renderer, tools
        self.calls = []

    def prompts(self, messages):
        """All that the next prompt may be: several where calls said the same, by other tokens."""
        fitting = [
            (len(asked) + 1, dialogue, response)
            for asked, answer, dialogue, response in self.calls
            if [*map(plain, asked), plain(answer)] == [*map(plain, messages[: len(asked) + 1])]
            and thinks_alike(messages[len(asked)], answer)
        ]
        if not fitting:
            return [self.renderer.dialogue([_template(message) for message in messages], self.tools).prompt_ids.tolist()]
        deepest = max(covered for covered, _, _ in fitting)
        new = [_template(message) for message in messages[deepest:]]
        return [
            dialogue.extended(response, new).prompt_ids.tolist()
            for covered, dialogue, response in fitting
            if covered == deepest
        ]


def plain(message):
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message["role"], message["content"], calls


def thinks_alike(given, answer):
    return not given.get("reasoning") or given["reasoning"] == answer.get("reasoning")


def _template(message):
    reasoning = message.get("reasoning")
    message = {name: value for name, value in message.items() if name != "reasoning"}
    return message | {"content": f"<think>\n{reasoning}\n</think>\n\n{message['content']}"} if reasoning else message


@settings(max_examples=120)
@given(data=st.data(), template=st.sampled_from([HERMES, DROPS_THINKING, OPENS_THINKING]))
def test_every_prompt_of_a_random_graph_of_calls_is_the_one_that_the_rule_gives(data, template):
    """Calls that extend, branch, repeat, edit and interleave, of two agents in one session: every token that the engine gave
    is trained once, where it was sampled."""
    renderer = make_renderer(template)
    any_ids = st.lists(st.integers(0, 319), max_size=8).map(lambda ids: np.asarray(ids, np.int32))

    async def body():
        engine = Engine([])
        calls = session(engine, renderer, max_episode_tokens=10**6)
        oracle = PlainSession(renderer, ask([]).tools)
        openings = [OPENING, [system("You are another."), user("Hi.")]]
        histories, made = [], []
        for _ in range(data.draw(st.integers(1, 9))):
            messages = copy.deepcopy(data.draw(st.sampled_from(openings)))
            if made and data.draw(st.booleans()):
                index = data.draw(st.integers(0, len(made) - 1))
                back = sent_back(made[index], reasoning=data.draw(st.booleans()))
                messages = copy.deepcopy([*histories[index], back, user(data.draw(st.sampled_from("pq")))])
                if data.draw(st.integers(0, 4)) == 0:
                    messages[data.draw(st.integers(0, len(messages) - 1))]["content"] += " (edited)"
                if data.draw(st.integers(0, 4)) == 0:
                    del messages[data.draw(st.integers(0, len(messages) - 2))]
            expected = oracle.prompts(messages)
            response = data.draw(st.one_of(any_ids, texts.map(renderer.tokenize)))
            if data.draw(st.booleans()):
                response = np.append(response, renderer.end_id).astype(np.int32)
            engine.responses = [response]
            call = await calls.call(ask(messages))
            assert call.turn.prompt_ids.tolist() in expected
            assert np.array_equal(call.turn.response_ids, response)
            oracle.calls.append((copy.deepcopy(messages), call.answer.as_message(), call.dialogue, response))
            histories.append(messages)
            made.append(call)
        record = await calls.close()
        assert [turn.prompt_ids.tolist() for turn in record.turns] == [prompt.tolist() for prompt, _ in engine.done]
        assert [turn.response_ids.tolist() for turn in record.turns] == [ids.tolist() for _, ids in engine.done]
        assert_trained_where_it_was_sampled([prompt for prompt, _ in engine.done], [ids for _, ids in engine.done])

    run(body())
