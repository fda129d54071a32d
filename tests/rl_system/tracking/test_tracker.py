import json
import math
import os

import numpy as np
import pytest

from rl_system.config.load import build_config
from rl_system.tracking.history import read_history
from rl_system.tracking.json_lines import JsonLines, read_lines
from rl_system.tracking.tracker import Tracker


@pytest.fixture
def config(tmp_path):
    return build_config({"name": "run", "output": str(tmp_path), "steps": 9, "tracking": {"wandb": "disabled"}})


def test_every_step_is_one_json_object_with_step_and_wall_clock(config):
    with Tracker(config) as tracker:
        for step in (1, 2, 3):
            tracker.step(step, {"reward/mean": step / 10})
            assert len(read_lines(config.directory / "metrics.jsonl")) == step  # on disk while the run goes on
    lines = [json.loads(line) for line in (config.directory / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["reward/mean"]) for line in lines] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    clock = [line["time/wall_clock_s"] for line in lines]
    assert clock == sorted(clock)
    assert clock[0] >= 0


def test_a_resume_drops_the_steps_that_are_done_again_and_the_clock_goes_on(config):
    with Tracker(config) as tracker:
        for step in (1, 2, 3):
            tracker.step(step, {"time/wall_clock_s": 100.0 * step})
        tracker.event("worker_lost", worker=1)
    with Tracker(config, resume_step=2) as tracker:
        assert tracker.wall_clock_s() >= 200
        tracker.step(3, {"reward/mean": 1.0})
    history = read_history(config.directory)
    assert [line["step"] for line in history.steps] == [1, 2, 3]
    assert history.steps[-1]["reward/mean"] == 1.0
    assert 200 <= history.steps[-1]["time/wall_clock_s"] < 300
    assert [event["event"] for event in history.events] == ["resume"]  # the loss happened after step 3, which is undone


def test_a_fresh_run_does_not_go_on_with_the_files_of_an_old_one(config):
    for _ in range(2):
        with Tracker(config) as tracker:
            tracker.step(1, {})
    assert len(read_history(config.directory).steps) == 1


def test_steps_never_go_back(config):
    with Tracker(config) as tracker:
        tracker.step(2, {})
        for step in (1, 2):
            with pytest.raises(ValueError, match="come after"):
                tracker.step(step, {})


def test_a_line_torn_by_a_kill_is_dropped_and_the_file_stays_readable(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert read_lines(path) == [{"step": 1}, {"step": 2}]
    lines = JsonLines(path, keep=lambda line: True)
    lines.write({"step": 3})
    lines.close()
    assert read_lines(path) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_a_broken_line_in_the_middle_is_reported_not_skipped(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_lines(path)


def test_a_line_torn_within_a_character_is_dropped(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path, keep=None)
    lines.write({"reason": "größer"})
    lines.write({"reason": "größer"})
    lines.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: -len(b"\xb6\xc3\x9fer\"}\n")])
    assert read_lines(path) == [{"reason": "größer"}]


def test_a_full_disk_holds_lines_back_and_loses_none_of_them(tmp_path, monkeypatch):
    path, write = tmp_path / "lines.jsonl", os.write
    lines = JsonLines(path, keep=None)
    free = 10

    def full(descriptor, content):
        nonlocal free
        if not free:
            raise OSError(28, "No space left on device")
        taken, free = content[:free], max(free - len(content), 0)
        return write(descriptor, taken)

    monkeypatch.setattr("os.write", full)
    assert not lines.write({"step": 1, "words": "more than ten bytes"})
    assert "No space left" in str(lines.fault)
    assert not lines.write({"step": 2})
    free = 10**6
    assert lines.write({"step": 3}) and lines.fault is None
    assert [line["step"] for line in read_lines(path)] == [1, 2, 3]
    assert lines.close()


def test_numbers_that_json_lacks_are_written_as_null_and_numpy_numbers_as_numbers(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path, keep=None)
    lines.write({"a": math.nan, "b": np.float32(math.inf), "c": np.float64(0.5), "d": np.int64(3), "e": [math.inf]})
    lines.close()
    assert read_lines(path) == [{"a": None, "b": None, "c": 0.5, "d": 3, "e": [None]}]


def test_evaluations_are_found_before_the_first_step_and_after_the_last(config):
    with Tracker(config) as tracker:
        tracker.evaluation({"eval/success_rate": 0.25})
        tracker.step(1, {})
        tracker.evaluation({"eval/success_rate": 0.5})
    found = [(line["step"], line["eval/success_rate"]) for line in read_history(config.directory).evaluations()]
    assert found == [(0, 0.25), (1, 0.5)]
