import json
import os
import shutil
import socket
import subprocess

import pytest

from rl_system.errors import UserError
from rl_system.tracking.events import FINISHED
from rl_system.tracking.tracker import Tracker
from rl_system.viewer.api import Api, NotFound
from rl_system.viewer.runs import RunFolder, find_runs
from rl_system.viewer.transcripts import difference, whole_sequence
from tests.rl_system.viewer.world import configure, episode, make_run, write_group


@pytest.fixture
def api(tmp_path):
    make_run(tmp_path)
    made = Api([tmp_path], cache=tmp_path)
    made._run("run").refresh(wait=True)
    return made


def test_runs_are_found_in_folders_and_by_themselves(tmp_path):
    first, second = make_run(tmp_path / "one", "run", 1), make_run(tmp_path / "two", "run", 1)
    found = find_runs([tmp_path / "one", second.directory, first.directory])
    assert {name: run.path for name, run in found.items()} == {
        "run": first.directory.resolve(),
        "run-2": second.directory.resolve(),
    }


def test_folders_without_runs_are_told(tmp_path):
    with pytest.raises(UserError, match="nothing"):
        find_runs([tmp_path / "nothing"])
    with pytest.raises(UserError, match="no run"):
        Api([tmp_path], cache=tmp_path)


def test_links_that_leave_the_run_are_not_followed(tmp_path):
    config, outside = make_run(tmp_path / "runs"), tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.jsonl").write_text('{"event": "secret", "step": 0, "time/wall_clock_s": 0}\n')
    write_group(configure(tmp_path, "other"), 77, [episode(77, 0, text="secret")])
    folder = config.directory
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").symlink_to(outside / "secret.jsonl")
    (folder / "episodes" / "group_000077.jsonl").symlink_to(tmp_path / "other" / "episodes" / "group_000077.jsonl")
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "other", target_is_directory=True)
    api = Api([tmp_path / "runs"], cache=tmp_path)
    assert [each["run"] for each in api.runs()] == ["run"] and api.events("run") == []
    with pytest.raises(NotFound):
        api.episode("run", "g000077.0")
    shutil.rmtree(folder / "episodes")
    (folder / "episodes").symlink_to(tmp_path / "other" / "episodes", target_is_directory=True)
    api._run("run").refresh(wait=True)
    assert api.episodes("run", {})["total"] == 0


@pytest.mark.parametrize("parts", [("..", "x"), ("/etc/passwd",), ("a\0b",), ("a" * 5000,)])
def test_no_name_leads_out_of_a_run(tmp_path, parts):
    (tmp_path / "x").write_text("")
    (tmp_path / "run").mkdir()
    assert RunFolder("run", (tmp_path / "run").resolve()).file(*parts) is None


def test_a_run_says_how_it_is(tmp_path):
    config = make_run(tmp_path)
    lock = config.directory / "run.lock"
    run = Api([tmp_path], cache=tmp_path)._run("run")
    assert run.state() == "stopped"
    lock.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    assert run.state() == "running"
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock.write_text(json.dumps({"pid": ended.pid, "host": socket.gethostname()}))
    assert run.state() == "killed"
    lock.write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    assert run.state() == "running"
    for path in config.directory.rglob("*"):
        os.utime(path, (1, 1))
    assert run.state() == "quiet"
    lock.unlink()
    with Tracker(config, resume_step=6) as tracker:
        tracker.event(FINISHED, steps=6)
    run.refresh(wait=True)
    assert run.state() == "finished"


def test_a_run_with_damaged_files_is_shown_with_what_is_left(tmp_path):
    config = make_run(tmp_path)
    (config.directory / "config.yaml").write_text("a: [b")
    with (config.directory / "metrics.jsonl").open("a") as stream:
        stream.write('nonsense\n"text"\n{"step": "x", "reward/mean": "high", "train/entropy": true}\n{"step": 9')
    api = Api([tmp_path], cache=tmp_path)
    assert api.run("run")["config"] == {}
    assert api.metrics("run", "reward/mean,absent")["absent"] == [None] * 6
    assert api.runs()[0]["steps"] == 6 and api.runs()[0]["reward"] == 0.6


def test_metrics_are_columns_of_one_length(api):
    found = api.metrics("run", "reward/mean,perf/absent", since_step="2")
    assert found["step"] == [3, 4, 5, 6] and found["perf/absent"] == [None] * 4
    assert {*found} == {"step", "time/wall_clock_s", "reward/mean", "perf/absent"}


def test_events_can_be_chosen_by_kind(api):
    assert [each["groups"] for each in api.events("run", "trained")] == [[0], [2], [4], [6], [8], [10]]
    assert {each["event"] for each in api.events("run")} == {"evaluation", "trained", "worker_lost"}
    with pytest.raises(UserError, match="since"):
        api.events("run", since="yesterday")


def test_steps_tell_what_they_trained_on_and_episodes_what_became_of_them(api):
    assert api.steps("run")[1] == {"step": 2, "groups": 1, "episodes": 3, "reward": 0.5}
    shown = api.episodes("run", {"group": "2"})["episodes"][0]
    assert (shown["step"], shown["staleness"], shown["dropped"]) == (2, 0, None)
    shown = api.episodes("run", {"group": "3"})["episodes"][0]
    assert (shown["step"], shown["staleness"], shown["dropped"]) == (None, None, "zero_signal")


def test_a_histogram_has_every_reward_in_its_bin(api):
    found = api.histogram("run", {"evaluated": "false", "bins": "4"})
    assert found["edges"] == [0.0, 0.25, 0.5, 0.75, 1.0] and found["counts"] == [24, 0, 6, 6]
    assert api.histogram("run", {"task": "hard"}) == {"edges": [0.0, 0.0], "counts": [18]}
    assert api.histogram("run", {"task": "none"}) == {"edges": [], "counts": []}
    with pytest.raises(UserError, match="bins"):
        api.histogram("run", {"bins": "0"})


def test_an_episode_has_its_transcript_and_its_tokens(api):
    found = api.episode("run", "g000002.1")
    assert [turn["context_ids"] for turn in found["turns"]] == [[0, 1, 2, 3, 4], [7]]
    assert found["turns"][1]["response_ids"] == [10, 21, 31] and found["turns"][1]["versions"] == [2, 2, 2]
    assert found["members"] == ["g000002.0", "g000002.1", "g000002.2"] and found["reward_parts"] == {"part": 0.5}
    with pytest.raises(NotFound):
        api.episode("run", "g000002.9")
    with pytest.raises(NotFound):
        api.episode("none", "g000002.1")


def test_two_members_part_at_the_token_where_they_do(api):
    found = api.diff("run", 2, "0", "2")
    assert found["common"] == 6 and found["tail"][-1]["id"] == 10
    assert [each["id"] for each in found["parted_at"]] == [20, 22]
    assert found["parted_at"][0]["logprob"] == -2.0 and found["tokens"] == [8, 16]
    for side in "ab":
        line = api._line(api._run("run"), f"g000002.{0 if side == 'a' else 2}")
        rest = [each["id"] for part in found["parts"] for each in part[side]]
        assert [each["id"] for each in whole_sequence(line)] == [0, 1, 2, 3, 4, 10, *rest]
    assert all([x["id"] for x in p["a"]] == [x["id"] for x in p["b"]] for p in found["parts"] if p["same"])


def test_sequences_that_do_not_part_are_told():
    tokens = [{"id": each} for each in range(5)]
    assert difference(tokens, tokens, None)["parted_at"] == [None, None]
    assert difference(tokens, tokens[:3], None)["parted_at"] == [{"id": 3}, None]
    assert difference([], [], None) == {
        "common": 0,
        "tail": [],
        "parted_at": [None, None],
        "parts": [],
        "aligned": True,
        "tokens": [0, 0],
    }


def test_long_rests_are_shown_whole():
    a, b = ([{"id": base + each} for each in range(4000)] for base in (0, 9000))
    found = difference(a, b, None)
    assert not found["aligned"] and len(found["parts"]) == 1


def test_a_broken_tokenizer_leaves_ids(tmp_path):
    config = make_run(tmp_path)
    model = config.directory / "checkpoints" / "step_2" / "model"
    model.mkdir(parents=True)
    (model / "tokenizer.json").write_text("{}")
    assert Api([tmp_path], cache=tmp_path).episode("run", "g000000.0")["turns"][0]["response"] is None
