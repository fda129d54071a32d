from rl_system.allocation.heartbeat import Heartbeat


def test_only_a_silence_longer_than_the_limit_stops_a_heartbeat() -> None:
    now = 0.0
    heartbeat = Heartbeat(10.0, lambda: now)
    now = 10.0
    assert not heartbeat.stopped and heartbeat.silent_s == 10.0
    now = 10.1
    assert heartbeat.stopped
    heartbeat.beat()
    now = 20.0
    assert not heartbeat.stopped
