from actors.engine.usage import EngineUsage


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_counts_as_busy_while_at_least_one_request_is_in_the_engine() -> None:
    clock = Clock()
    usage = EngineUsage(clock)
    clock.now += 5
    usage.request_started()
    clock.now += 2
    usage.request_started()
    clock.now += 3
    usage.request_ended()
    clock.now += 4
    usage.request_ended()
    clock.now += 1
    report = usage.report()
    assert (report["busy_s"], report["idle_s"], report["requests"]) == (9.0, 6.0, 0)


def test_busy_and_idle_add_up_to_the_lifetime_at_every_report() -> None:
    clock = Clock()
    usage = EngineUsage(clock)
    for step in range(10):
        clock.now += step
        if step % 3 == 0:
            usage.request_started()
        report = usage.report()
        assert report["busy_s"] + report["idle_s"] == clock.now - 100.0


def test_a_request_that_was_cancelled_is_not_counted_as_finished() -> None:
    usage = EngineUsage(Clock())
    usage.request_started()
    usage.request_ended()
    usage.request_started()
    usage.request_finished(prompt_tokens=7, cached_prompt_tokens=4, generated_tokens=3)
    usage.request_ended()
    report = usage.report()
    assert [report[name] for name in ("finished_requests", "prompt_tokens", "cached_prompt_tokens")] == [1, 7, 4]
    assert report["generated_tokens"] == 3
