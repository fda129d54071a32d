import json
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.errors import UserError
from rl_system.records import Ending
from rl_system.tracking.tracker import Tracker
from rl_system.viewer.api import Api
from rl_system.viewer.growing import GrowingLines
from rl_system.viewer.index import Index
from rl_system.viewer.runs import RunFolder
from tests.rl_system.viewer.world import add_step, configure, episode, make_run, write_group


def keys(index: Index) -> list[str]:
    return sorted(row[0] for row in index.select("SELECT key FROM episodes"))


@pytest.fixture
def run(tmp_path):
    return configure(tmp_path, "run")


@pytest.fixture
def index(run, tmp_path):
    (tmp_path / "cache").mkdir()
    return Index(RunFolder("run", run.directory.resolve()), tmp_path / "cache")


def test_only_files_that_changed_are_read_again(run, index):
    write_group(run, 0, [episode(0, 0), episode(0, 1)])
    assert index.refresh() == 1 and index.refresh() == 0
    write_group(run, 1, [episode(1, 0)])
    assert index.refresh() == 1
    assert keys(index) == ["g000000.0", "g000000.1", "g000001.0"]


def test_an_episode_is_read_by_its_place_in_the_file(run, index):
    write_group(run, 3, [episode(3, i, i / 4, text="é" * i) for i in range(4)])
    index.refresh()
    assert [index.read(f"g000003.{i}")["reward"] for i in range(4)] == [0.0, 0.25, 0.5, 0.75]


def test_a_group_that_is_played_again_takes_the_place_of_the_one_before(run, index):
    write_group(run, 0, [episode(0, 0, text="before"), episode(0, 1)])
    index.refresh()
    write_group(run, 0, [episode(0, 0, text="afterwards")])
    index.refresh()
    assert keys(index) == ["g000000.0"]
    assert "afterwards" in index.read("g000000.0")["transcript"][1]["content"]


def test_a_file_that_vanishes_is_forgotten(run, index):
    write_group(run, 0, [episode(0, 0)]).unlink()
    write_group(run, 1, [episode(1, 0)])
    index.refresh()
    write_group(run, 1, [episode(1, 0)]).unlink()
    index.refresh()
    assert keys(index) == []


def test_torn_and_foreign_lines_are_left_out_and_the_others_found(run, index):
    path = write_group(run, 0, [episode(0, 0), episode(0, 1, 0.5)])
    first, second, _ = path.read_text().split("\n")
    path.write_bytes(f'{first[:200]}\nnull\n[1]\n{{"task": 3}}\n{second}\n\xff\n{first[:50]}'.encode("latin-1"))
    index.refresh()
    assert keys(index) == ["g000000.1"] and index.read("g000000.1")["reward"] == 0.5
    assert index.select("SELECT broken FROM files")[0][0] == 6


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["task", "turns", "transcript", "counts", "timings", "reward", "versions", "failure", "index"]
                ),
                inner,
                max_size=6,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_a_line_holds_is_a_row_or_none(line):
    from rl_system.viewer.rows import COLUMNS, row_of, words_of

    line = {"task": {}, "turns": [], "transcript": [], **line} if isinstance(line, dict) else {}
    row = row_of(line, {"group": "1", "evaluation": None}, 0, 0.0)
    if row is not None:
        assert tuple(row) == COLUMNS
        assert all(value is None or isinstance(value, str | int | float) for value in row.values())
        assert isinstance(words_of(line), str)


def test_a_damaged_index_is_made_anew(run, index):
    write_group(run, 0, [episode(0, 0)])
    index.refresh()
    index.close()
    for path in index.path.parent.iterdir():
        path.unlink()
    index.path.write_bytes(b"this is no database" * 1000)
    again = Index(index.run, index.path.parent)
    again.refresh()
    assert keys(again) == ["g000000.0"]


def test_an_index_damaged_under_an_open_viewer_is_made_anew(run, index):
    for group in range(30):
        write_group(run, group, [episode(group, 0)])
    index.refresh()
    index.select("SELECT 1")
    index._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = index.path.stat().st_size
    with index.path.open("r+b") as stream:
        stream.write(b"\xa5" * size)
    for _ in range(3):
        index.refresh()
        index.select("SELECT key FROM episodes")
    assert len(keys(index)) == 30


def test_two_viewers_share_an_index(run, index):
    for group in range(40):
        write_group(run, group, [episode(group, 0)])
    other = Index(index.run, index.path.parent)
    threads = [threading.Thread(target=each.refresh) for each in (index, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys(index)) == len(keys(other)) == 40


def test_nothing_is_written_into_the_run(tmp_path):
    config = make_run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in config.directory.rglob("*")}
    api = Api([tmp_path], cache=tmp_path)
    api.run("run"), api.episodes("run", {}), api.episode("run", "g000000.0")
    assert {path: path.stat().st_mtime_ns for path in config.directory.rglob("*")} == before


# -- against a plain scan of the run directory


def scan(config) -> list[dict]:
    trained = {}
    for line in (config.directory / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "trained":
            trained |= dict.fromkeys(event["groups"], event["step"])
    found = []
    for path in (config.directory / "episodes").glob("*.jsonl"):
        for number, text in enumerate(path.read_text().splitlines()):
            line = json.loads(text)
            versions = [version for turn in line["turns"] for version in turn["versions"]]
            evaluation = int(path.stem.split("_")[-1]) if path.stem.startswith("evaluation") else None
            step = None if evaluation is not None else trained.get(line["group_id"])
            found.append(
                {
                    "id": f"e{evaluation}.{number}"
                    if evaluation is not None
                    else f"g{line['group_id']:06}.{line['index']}",
                    "task": line["task"]["task_id"],
                    "split": line["task"]["split"],
                    "domain": line["task"]["domain"],
                    "reward": line["reward"],
                    "ended": line["ended"],
                    "turns": len(line["turns"]),
                    "errors": line["counts"]["tool_errors"],
                    "versions": (min(versions), max(versions)),
                    "step": step,
                    "evaluation": evaluation,
                    "dropped": "dropped" in line,
                    "staleness": None if step is None else step - 1 - min(versions),
                    "words": " ".join(str(message) for message in line["transcript"]),
                }
            )
    return found


def keeps(each: dict, filters: dict[str, str]) -> bool:
    def at_least(value, bound):
        return value is not None and value >= float(bound)

    checks = {
        "task": lambda v: each["task"] == v,
        "split": lambda v: each["split"] == v,
        "domain": lambda v: each["domain"] == v,
        "ended": lambda v: each["ended"] == v,
        "reward_min": lambda v: at_least(each["reward"], v),
        "reward_max": lambda v: each["reward"] <= float(v),
        "errors_min": lambda v: at_least(each["errors"], v),
        "turns_min": lambda v: at_least(each["turns"], v),
        "turns_max": lambda v: each["turns"] <= float(v),
        "version": lambda v: each["versions"][0] <= float(v) <= each["versions"][1],
        "staleness_min": lambda v: at_least(each["staleness"], v),
        "step": lambda v: each["step"] == float(v),
        "trained": lambda v: (each["step"] is not None) == (v == "true"),
        "dropped": lambda v: each["dropped"] == (v == "true"),
        "evaluated": lambda v: (each["evaluation"] is not None) == (v == "true"),
        "q": lambda v: all(f" {word}" in f" {each['words']}".replace("'", " ") for word in v.split()),
    }
    return all(checks[name](value) for name, value in filters.items())


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scanned")
    config = make_run(folder)
    write_group(config, 90, [episode(90, i, 0.7, ended=Ending.TIMEOUT, errors=2, version=3, turns=4) for i in range(2)])
    api = Api([folder], cache=folder)
    api._run("run").refresh(wait=True)
    return api, scan(config)


NUMBERS = st.sampled_from(["0", "0.5", "1", "2", "3", "-1", "1e3"])
FLAG = st.sampled_from(["true", "false"])
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "task": st.sampled_from(["hard", "task-2", "none"]),
        "split": st.sampled_from(["train", "test"]),
        "domain": st.just("desk"),
        "ended": st.sampled_from(["agent_stop", "timeout"]),
        "reward_min": NUMBERS,
        "reward_max": NUMBERS,
        "errors_min": NUMBERS,
        "turns_min": NUMBERS,
        "turns_max": NUMBERS,
        "version": NUMBERS,
        "staleness_min": NUMBERS,
        "step": NUMBERS,
        "trained": FLAG,
        "dropped": FLAG,
        "evaluated": FLAG,
        "q": st.sampled_from(["word2", "common", "word3 common", "comm", "absent", "hello"]),
    },
)


@given(FILTERS)
@settings(max_examples=100, deadline=None)
def test_filters_leave_what_a_plain_scan_of_the_run_leaves(scanned, filters):
    api, lines = scanned
    right = sorted(each["id"] for each in lines if keeps(each, filters))
    found = api.episodes("run", {**filters, "limit": "1000"})
    assert sorted(each["id"] for each in found["episodes"]) == right and found["total"] == len(right)
    assert sum(api.histogram("run", filters)["counts"]) == len(right)


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_every_text_can_be_searched_for(scanned, text):
    api, lines = scanned
    assert 0 <= api.episodes("run", {"q": text})["total"] <= len(lines)


def test_pages_of_a_list_are_its_parts(scanned):
    api, lines = scanned
    whole = [each["id"] for each in api.episodes("run", {"sort": "reward", "limit": "1000"})["episodes"]]
    parts = [
        each["id"]
        for offset in range(0, len(lines), 7)
        for each in api.episodes("run", {"sort": "reward", "limit": "7", "offset": str(offset)})["episodes"]
    ]
    assert parts == whole


@pytest.mark.parametrize(
    "filters, named",
    [
        ({"reward_min": "much"}, "reward_min"),
        ({"reward_min": "nan"}, "reward_min"),
        ({"limit": "-1"}, "limit"),
        ({"sort": "e.id; --"}, "sort"),
        ({"trained": "yes"}, "trained"),
        ({"reward": "1"}, "reward"),
        ({"offset": "1" * 30}, "offset"),
        ({"version": "1e999"}, "version"),
    ],
)
def test_a_filter_that_cannot_be_is_told(scanned, filters, named):
    with pytest.raises(UserError, match=named):
        scanned[0].episodes("run", filters)


# -- files that grow


def test_lines_that_grow_are_read_as_far_as_they_are_whole(tmp_path):
    path, lines = tmp_path / "lines.jsonl", GrowingLines()
    assert not lines.refresh(path) and not lines.refresh(None)
    path.write_bytes(b'{"a": 1}\n{"a": "\xc3')
    assert lines.refresh(path) and lines.lines == [{"a": 1}]
    with path.open("ab") as stream:
        stream.write(b'\xa9"}\n')
    assert lines.refresh(path) and lines.lines == [{"a": 1}, {"a": "é"}]
    assert not lines.refresh(path)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_that_is_begun_anew_is_read_from_its_beginning(tmp_path, in_place):
    path, lines = tmp_path / "lines.jsonl", GrowingLines()
    path.write_text('{"a": 1}\n{"a": 2}\n')
    lines.refresh(path)
    new = path if in_place else tmp_path / "new"
    new.write_text('{"a": 3}\n{"a": 4}\n{"a": 5}\n')
    os.replace(new, path)
    lines.refresh(path)
    assert [line["a"] for line in lines.lines] == [3, 4, 5]


def test_a_resume_takes_back_what_it_undoes(tmp_path):
    config = make_run(tmp_path, steps=4)
    api = Api([tmp_path], cache=tmp_path)
    assert api.metrics("run")["step"] == [1, 2, 3, 4]
    with Tracker(config, resume_step=2) as tracker:
        add_step(config, tracker, 3)
    api._run("run")._looked = float("-inf")
    assert api.metrics("run")["step"] == [1, 2, 3]
    api._run("run").refresh(wait=True)
    assert [each["step"] for each in api.steps("run")] == [1, 2, 3]
