"""The server: keys, sizes, disconnects, many at once."""

import asyncio

import httpx
import pytest

from rl_system.chat.agent import GenerationFailed
from tests.rl_system.chat.dialogues import make_renderer
from tests.rl_system.endpoint.servers import Door, opened, run, serving

BODY = {"model": "policy", "messages": [{"role": "user", "content": "Hi."}]}
CHAT = "/v1/chat/completions"


def http(door: Door, key: str | None = None, **headers) -> httpx.AsyncClient:
    key = door.key if key is None else key
    headers = {"authorization": f"Bearer {key}"} | headers if key else headers
    return httpx.AsyncClient(base_url=door.server.base_url, headers=headers, timeout=30)


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/nothing"])
def test_without_the_key_of_an_open_episode_everything_is_refused(path):
    async def body():
        async with serving() as server:
            door, other = opened(server, "a"), opened(server, "b")
            await server.close_session(other.key)
            answers = []
            for key in ("", "sk-wrong", other.key, door.key[:-1]):
                async with http(door, key) as client:
                    answers.append(await client.post(path, json=BODY))
            assert door.engine.asked == other.engine.asked == []
            return answers

    answers = run(body())
    assert [answer.status_code for answer in answers] == [401] * 4
    assert {answer.json()["error"]["code"] for answer in answers} == {"invalid_api_key"}
    assert all(answer.headers["x-should-retry"] == "false" for answer in answers)


def test_both_ways_to_give_a_key_are_taken():
    async def body():
        async with serving() as server:
            door = opened(server, "a", "b")
            async with http(door) as client:
                first = await client.post(CHAT, json=BODY)
            async with http(door, "", **{"x-api-key": door.key}) as client:
                return first, await client.post(CHAT, json=BODY)

    assert [answer.status_code for answer in run(body())] == [200, 200]


def test_a_key_is_refused_from_the_moment_its_episode_is_over_and_waiting_calls_with_it():
    async def body():
        async with serving() as server:
            door = opened(server, "a", gate=asyncio.Event())
            async with http(door) as client:
                waiting = asyncio.create_task(client.post(CHAT, json=BODY))
                while not door.engine.asked:
                    await asyncio.sleep(0.01)
                await server.close_session(door.key)
                return (await waiting).status_code, (await client.post(CHAT, json=BODY)).status_code, door.engine.cancelled

    assert run(body()) == (401, 401, 1)


def test_sessions_see_no_token_of_each_other():
    async def body():
        async with serving() as server:
            doors = [opened(server, *[f"secret {number}"] * 3) for number in range(20)]

            async def play(door: Door):
                messages = list(BODY["messages"])
                async with http(door) as client:
                    for _ in range(3):
                        answer = (await client.post(CHAT, json=BODY | {"messages": messages})).json()
                        messages += [answer["choices"][0]["message"], {"role": "user", "content": "And?"}]
                return await server.close_session(door.key)

            return await asyncio.gather(*map(play, doors))

    renderer = make_renderer()
    for number, record in enumerate(run(body())):
        text = renderer._tokenizer.decode(record.turns[-1].token_ids)
        assert text.count(f"secret {number}<") == 3 and text.count("secret") == 3


def test_the_models_of_a_session_are_the_one_that_it_calls():
    async def body():
        async with serving() as server:
            async with http(opened(server)) as client:
                return [await client.get(path) for path in ("/v1/models", "/v1/models/policy", "/v1/models/gpt-4o", "/health")]

    models, model, other, health = run(body())
    assert [each["id"] for each in models.json()["data"]] == ["policy"] == [model.json()["id"]]
    assert other.status_code == 404 and health.status_code == 200


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"x" * 2_000_000, 413), (b"{not json", 400), (b"[" * 100_000, 400), (b"[]", 400), (b'"x"', 400), (b"\xff\xfe", 400), (b"", 400)],
)
def test_a_request_that_is_too_large_or_no_json_is_refused(content, status):
    async def body():
        async with serving(max_body=1 << 20) as server:
            door = opened(server, "a")

            async def in_parts():
                for start in range(0, len(content), 100_000):
                    yield content[start : start + 100_000]

            async with http(door) as client:
                answers = [await client.post(CHAT, content=content), await client.post(CHAT, content=in_parts())]
                answers.append(await client.post(CHAT, json=BODY))
            return [answer.status_code for answer in answers]

    assert run(body()) == [status, status, 200]


def test_a_call_with_200000_characters_is_refused_and_costs_nobody_else_more_than_a_moment():
    async def body():
        async with serving() as server:
            hostile, other = opened(server, max_model_len=4096), opened(server, *["a"] * 20)
            huge = BODY | {"messages": [{"role": "user", "content": "word " * 40_000}]}
            async with http(hostile) as bad, http(other) as good:
                refused = [asyncio.create_task(bad.post(CHAT, json=huge)) for _ in range(4)]
                answers = [(await good.post(CHAT, json=BODY)).status_code for _ in range(20)]
                return answers, [(await each).json()["error"]["code"] for each in refused]

    answers, codes = run(body())
    assert answers == [200] * 20 and codes == ["context_length_exceeded"] * 4


def test_a_client_that_goes_away_while_it_waits_takes_its_request_out_of_the_engine():
    async def body():
        async with serving() as server:
            door = opened(server, "a", "b", gate=asyncio.Event())
            async with http(door) as client:
                with pytest.raises(httpx.ReadTimeout):
                    await client.post(CHAT, json=BODY, timeout=0.3)
            while not door.engine.cancelled:
                await asyncio.sleep(0.01)
            door.engine.gate.set()
            async with http(door) as client:
                answer = await client.post(CHAT, json=BODY)
            return answer.status_code, await server.close_session(door.key)

    status, record = run(body())
    assert status == 200 and len(record.turns) == 1 and record.counts["cancelled_calls"] == 1


def test_a_client_that_goes_away_in_mid_stream_costs_nobody_anything():
    async def body():
        async with serving() as server:
            door = opened(server, "word " * 2_000, "b", max_new_tokens=20_000, max_episode_tokens=10**6)
            async with http(door) as client:
                async with client.stream("POST", CHAT, json=BODY | {"stream": True}) as stream:
                    async for _ in stream.aiter_lines():
                        break
                answer = await client.post(CHAT, json=BODY)
            return answer.status_code, await server.close_session(door.key)

    status, record = run(body())
    # The engine had finished the turn: it is part of the episode, whoever read it.
    assert status == 200 and len(record.turns) == 2 and len(record.turns[0].response_ids) > 2_000


def test_when_no_engine_answers_the_client_gets_a_server_error_and_the_session_a_failure():
    async def body():
        async with serving() as server:
            door = opened(server)
            async def broken(*_, **__):
                raise GenerationFailed("all engines are gone")

            door.session.sample = broken
            async with http(door) as client:
                answer = await client.post(CHAT, json=BODY)
            return answer, await server.close_session(door.key)

    answer, record = run(body())
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
    assert "all engines are gone" in record.failure and "all engines are gone" in answer.json()["error"]["message"]


def test_a_fault_of_the_endpoint_itself_fails_the_session_and_never_passes_for_an_answer():
    async def body():
        async with serving() as server:
            door = opened(server, "a")

            async def faulty(*_, **__):
                raise ZeroDivisionError("a bug")

            door.session.sample = faulty
            async with http(door) as client:
                answer = await client.post(CHAT, json=BODY)
            return answer.status_code, await server.close_session(door.key)

    status, record = run(body())
    assert status == 503 and "a bug" in record.failure


def test_other_paths_and_methods_are_refused_in_the_protocols_own_words():
    async def body():
        async with serving() as server:
            async with http(opened(server)) as client:
                return [await client.post("/v1/embeddings", json={}), await client.get(CHAT), await client.get("/")]

    answers = run(body())
    assert [answer.status_code for answer in answers] == [404, 405, 404]
    assert all("message" in answer.json()["error"] for answer in answers)


def test_stopping_the_server_ends_calls_that_wait():
    async def body():
        async with serving() as server:
            door = opened(server, "a", gate=asyncio.Event())
            client, late = http(door), http(door)
            waiting = asyncio.create_task(client.post(CHAT, json=BODY))
            while not door.engine.asked:
                await asyncio.sleep(0.01)
            await server.stop()
            status = (await waiting).status_code
            await client.aclose()
            with pytest.raises(httpx.ConnectError):
                await late.post(CHAT, json=BODY)
            await late.aclose()
            return status, door.engine.cancelled

    assert run(body()) == (401, 1)
