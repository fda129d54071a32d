import json

import pytest

from launch.bench.__main__ import main

SMALL = "--hidden 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 48".split()


@pytest.fixture
def tree_file(tmp_path):
    shared = list(range(1, 20))
    sequences = [shared + [turn] * 6 for turn in range(20, 26)]
    path = tmp_path / "tree.json"
    path.write_text(
        json.dumps({"name": "t", "vocab_size": 40, "sequences": sequences, "response_start": [19] * len(sequences)})
    )
    return str(path)


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_executor_prints_one_json_object_for_each_method_and_block_size(tree_file, capsys):
    command = f"executor --trees {tree_file} --methods dense,tree --block-tokens 16,0 --repeats 2 --json".split()
    assert main([*command, *SMALL]) == 0
    records = lines(capsys)
    assert [(each["method"], each["block_tokens"]) for each in records] == [("dense", 0), ("tree", 16), ("tree", 0)]
    for each in records:
        assert len(each["cpu_s"]) == 2 and each["median_cpu_s"] > 0
        assert each["sequence_tokens"] == 150 and each["unique_tokens"] == 55
        assert each["peak_rss_mib"] > 0 and each["ran"] == each["method"]
    assert records[1]["recomputed_tokens"] > 0 and records[2]["recomputed_tokens"] == 0
    assert records[1]["peak_live_tokens"] <= 16
    assert len({round(each["loss"], 6) for each in records}) == 1


def test_gradients_exit_with_one_above_the_tolerance(tree_file, capsys):
    command = f"gradients --trees {tree_file} --block-tokens 16,0 --objective ppo --json".split()
    assert main([*command, *SMALL]) == 0
    assert all(each["relative_error"] <= 1e-9 and each["loss_relative_error"] <= 1e-9 for each in lines(capsys))
    assert main([*command, *SMALL, "--tolerance", "1e-30"]) == 1


def test_partition_compares_contiguous_parts_with_longest_first(tree_file, capsys):
    assert main(["partition", "--trees", tree_file, "--parts", "1,3", "--json"]) == 0
    records = lines(capsys)
    assert [each["parts"] for each in records] == [1, 1, 1, 3, 3, 3]
    for each in records:
        assert len(each["costs"]) == len(each["unique_tokens"]) == each["parts"]
        assert each["imbalance"] >= 1 - 1e-9
    assert records[0]["sharing_kept"] == 1


def test_a_file_that_is_no_tree_is_refused_in_one_paragraph(tmp_path, capsys):
    path = tmp_path / "no.json"
    path.write_text("{}")
    assert main(["partition", "--trees", str(path)]) == 2
    assert "not a tree file" in capsys.readouterr().err
