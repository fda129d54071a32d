"""What a call of an agent costs: the command at a small size."""

import json

from launch.bench.__main__ import main
from tests.models import SMALL_MODEL, prepare_model

SMALL = ["--sessions", "2", "--turns", "3", "--repeats", "1", "--opening", "20", "--message", "5", "--answer", "5"]


def test_every_protocol_and_the_direct_way_are_measured_turn_by_turn(capsys):
    prepare_model(SMALL_MODEL)
    assert main(["endpoint", "--protocols", "chat,responses,messages", "--json", *SMALL]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["path"] for each in records] == ["chat", "responses", "messages", "direct"]
    for each in records:
        assert (each["sessions"], each["turns"]) == (2, 3) and len(each["by_turn_ms"]) == 3
        assert all(cost > 0 for cost in each["by_turn_ms"]) and each["last_ms"] == each["by_turn_ms"][-1]


def test_an_unknown_protocol_is_refused_by_name(capsys):
    assert main(["endpoint", "--protocols", "chat,grpc"]) == 2
    assert "'grpc'; there are chat, responses, messages" in capsys.readouterr().err
