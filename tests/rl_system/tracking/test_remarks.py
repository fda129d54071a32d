from rl_system.tracking.history import read_history
from rl_system.tracking.remarks import StepRemarks, remarks
from rl_system.tracking.report import write_report
from tests.rl_system.tracking.runs import write_run


def test_a_bad_step_is_said_when_it_happens_and_not_again() -> None:
    said = StepRemarks("float32")
    assert said.of(1, {"train/bad_steps": 0.0, "train/updates": 1.0}) == []
    (text,) = said.of(2, {"train/bad_steps": 1.0})
    assert "update 2" in text and "policy was not finite" in text and "(1 such" in text
    assert said.of(3, {"train/bad_steps": 1.0}) == []
    (text,) = said.of(4, {"train/bad_steps": 1.0, "train/critic_bad_steps": 2.0})
    assert "critic" in text


def test_a_batch_from_which_nothing_was_learnt_is_said() -> None:
    said = StepRemarks("float32")
    assert said.of(1, {"train/updates": 1.0, "train/empty_updates": 1.0}) == []
    (text,) = said.of(2, {"train/updates": 0.0, "train/empty_updates": 2.0})
    assert "no token of the batch had a gradient" in text


def test_an_engine_that_differs_by_more_than_rounding_is_said_once() -> None:
    said = StepRemarks("float32")
    assert said.of(1, {"rollout/logprob_gap": 7e-5}) == []
    (text,) = said.of(2, {"rollout/logprob_gap": 0.17})
    assert "0.17 nats" in text
    assert said.of(3, {"rollout/logprob_gap": 0.2}) == []
    assert len(StepRemarks("float32").of(1, {"rollout/logprob_gap": float("nan")})) == 1
    assert StepRemarks("bfloat16").of(1, {"rollout/logprob_gap": 0.17}) == []


def test_the_report_remarks_on_bad_steps_and_on_gaps_above_what_is_normal(tmp_path) -> None:
    whole = write_run(tmp_path, "whole", 3)
    assert remarks(read_history(whole)) == [] and "<h2>Remarks" not in write_report(whole).read_text()
    path = write_run(tmp_path, "broken", 3)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(
            '{"step": 4, "time/wall_clock_s": 50.0, "train/bad_steps": 2.0, "train/empty_updates": 1.0, '
            '"rollout/logprob_gap": 0.25}\n'
        )
    said = remarks(read_history(path))
    assert len(said) == 3 and "2 updates of the policy" in said[0] and "0.25 nats" in said[2] and "1 of 1 steps" in said[2]
    page = write_report(path).read_text()
    assert "<h2>Remarks</h2>" in page and all(text.split(":")[0] in page for text in said)
