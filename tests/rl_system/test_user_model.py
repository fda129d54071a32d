"""The server of the user's model, asked before a run starts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rl_system.config.environment import UserConfig
from rl_system.errors import UserError
from rl_system.training.hub_cache import ModelNotCached
from rl_system.user_model import UserUnreachable, check_user
from tests.loopback import QuietHandler, serving_on_loopback


@contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            self.send_response(status if found else 404)
            self.end_headers()
            self.wfile.write(body.encode())

    with serving_on_loopback(Handler) as address:
        yield address


def user(**values: object) -> UserConfig:
    return UserConfig(**{"kind": "llm", "model": "customer"} | values)


def listing(*names: str) -> str:
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]})


def test_a_server_that_serves_the_model_is_accepted():
    with answering(200, listing("other", "customer")) as address:
        check_user(user(api_base=address), "cuda")
        check_user(user(api_base=f"{address}/"), "cpu")


def test_a_server_that_serves_other_models_is_refused_with_those_that_it_has():
    with answering(200, listing("other")) as address, pytest.raises(UserError, match="serves other"):
        check_user(user(api_base=address), "cuda")


@pytest.mark.parametrize(("status", "body"), [(404, ""), (200, "hello"), (200, "{}"), (500, "")])
def test_a_server_without_a_list_of_models_is_accepted(status, body):
    with answering(status, body) as address:
        check_user(user(api_base=address), "cuda")


def test_a_server_that_refuses_the_key_is_told():
    with answering(401, "") as address, pytest.raises(UserError, match="OPENAI_API_KEY"):
        check_user(user(api_base=address), "cuda")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/v1", "http://no-such-host.invalid/v1"])
def test_an_address_where_nothing_answers_is_told(address):
    with pytest.raises(UserUnreachable, match="environment.user.api_base"):
        check_user(user(api_base=address), "cuda")


def test_a_user_to_be_served_here_needs_its_model():
    with pytest.raises(UserError, match=r"environment\.user\.model '/no/such/model'"):
        check_user(user(model="/no/such/model"), "cpu")
    with pytest.raises(ModelNotCached, match=r"environment\.user\.model 'owner/no-such-model'"):
        check_user(user(model="owner/no-such-model"), "cpu")


def test_gpus_are_not_shared_with_the_users_model():
    with pytest.raises(UserError, match="environment.user.api_base is missing.*vllm serve customer"):
        check_user(user(), "cuda")


@pytest.mark.parametrize("kind", ["solo", "scripted"])
def test_users_that_are_no_models_need_nothing(kind):
    check_user(UserConfig(kind=kind), "cuda")
