"""Tree files of conversations: their sharing is what the options say."""

from launch.bench.support.tree_files import read_tree_file
from launch.bench.trees import main
from rl_system.tree import build_tree


def test_a_written_tree_shares_the_policy_between_all_and_the_ticket_within_a_task(tmp_path, capsys):
    file = tmp_path / "small.json"
    sizes = ["--tasks", "3", "--rollouts", "4", "--turns", "2", "--forks", "1", "--policy", "50", "--ticket", "20"]
    assert main(["--out", str(file), *sizes, "--turn", "10"]) == 0
    capsys.readouterr()
    batch = read_tree_file(file).batch
    assert len(batch) == 3 * 4 * 2
    own = batch.sequence_tokens - len(batch) * (50 + 20)
    unique = 50 + 3 * 20 + own
    # Random continuations share a token now and then.
    assert unique - len(batch) <= len(build_tree(batch)) <= unique
    assert not batch.trained[: 50 + 20].any() and batch.trained[50 + 20]
