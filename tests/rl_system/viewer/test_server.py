import http.client
import json
import urllib.request
from urllib.parse import urlsplit

import pytest

from rl_system.viewer.server import PAGE, STATIC
from tests.rl_system.viewer.world import HOSTILE, TOKEN, episode, make_run, serving, write_group


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    config = make_run(folder, steps=2)
    write_group(config, 50, [episode(50, 0, text=HOSTILE, task=HOSTILE)])
    with serving([folder], folder) as address:
        yield address.partition("/?")[0]


def ask(
    base: str, path: str, *, token: str | None = TOKEN, method: str = "GET", body: bytes | None = None, **headers: str
):
    """Status, headers and body; redirections are not followed."""
    parts = urlsplit(base)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, answer.headers, text


@pytest.mark.parametrize("path", ["/", "/r/run", "/api/runs", "/api/stream", "/static/app.js", "/nothing"])
@pytest.mark.parametrize("token", [None, "", "wrong", "é", TOKEN[:-1]])
def test_nothing_is_answered_without_the_token(base, path, token):
    status, headers, text = ask(base, path, token=None if token is None else token.encode().decode("latin-1"))
    assert status == 401 and b"run" not in text.replace(b"carries", b"")
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_the_token_of_the_address_becomes_a_cookie(base):
    status, headers, _ = ask(base, f"/r/run/episodes?q=a%26b&token={TOKEN}&step=1", token=None)
    assert status == 307 and headers["location"] == "/r/run/episodes?q=a%26b&step=1"
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert ask(base, "/api/runs", token=None, Cookie=cookie.partition(";")[0])[0] == 200


def test_the_token_leads_to_no_other_host(base):
    for path in ("//evil.example/", "/\\evil.example/", "///evil.example"):
        location = ask(base, f"{path}?token={TOKEN}", token=None)[1].get("location", "/")
        assert location.startswith("/") and location[1:2] not in ("/", "\\")


def test_answers_are_strict_json_and_errors_are_told(base):
    def constant(name):
        raise AssertionError(name)

    for path in (
        "/api/runs",
        "/api/runs/run",
        "/api/runs/run/metrics",
        "/api/runs/run/events",
        "/api/runs/run/episodes?q=answer",
        "/api/runs/run/histogram",
        "/api/runs/run/steps",
        "/api/runs/run/groups/0",
        "/api/runs/run/groups/0/diff?a=0&b=2",
        "/api/runs/run/episodes/g000000.1",
    ):
        status, headers, text = ask(base, path)
        assert status == 200 and headers["content-type"] == "application/json"
        json.loads(text, parse_constant=constant)
    for path, status in (
        ("/api/runs/none", 404),
        ("/api/runs/run/episodes/g000000.99", 404),
        ("/api/runs/run/episodes?bad=1", 400),
        ("/api/runs/run/metrics?nonsense=1", 400),
        ("/api/runs/run/groups/0/diff?a=x", 400),
        ("/api/runs/run/groups/999", 404),
    ):
        found, _, text = ask(base, path)
        assert found == status and json.loads(text)["error"], path


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/api/runs/..",
        "/api/runs/%2e%2e%2f%2e%2e/episodes",
        "/api/runs/run/episodes/..%2f..%2fconfig.yaml",
        "/api/runs/run/groups/-1",
        "/static/vendor/../../api.py",
        "/static/%00",
    ],
)
def test_no_address_leads_to_other_files(base, path):
    status, _, text = ask(base, path)
    assert status in (400, 404, 405) and b"import" not in text


def test_hostile_text_leaves_as_json_alone(base):
    _, headers, text = ask(base, "/api/runs/run/episodes/g000050.0")
    assert headers["content-type"] == "application/json" and headers["x-content-type-options"] == "nosniff"
    assert json.loads(text)["task"] == HOSTILE


def test_a_page_is_moved_only_to_pages(base):
    for url in (
        "https://evil.example/",
        "//evil.example",
        "/static/app.js",
        "javascript:1",
        "/r/a/../../api",
        "/r/run#x",
        "/\\evil",
        3,
        None,
        "/r/run/episodes/x",
        "/r/run/\nx",
    ):
        status, _, text = ask(base, "/view", method="POST", body=json.dumps({"url": url}).encode())
        assert status == 400 and json.loads(text)["error"], url
    for body in (b"", b"[", b"[]", b"null", b'{"url": 1}', b"\xff"):
        assert ask(base, "/view", method="POST", body=body)[0] == 400
    status, _, text = ask(base, "/view", method="POST", body=b'{"url": "/r/run/episodes/g000000.1?turn=0&tokens=1-2"}')
    assert (status, json.loads(text)) == (200, {"pages": 0})
    assert ask(base, "/view", method="POST", body=b'{"url": "/"}', token=None)[0] == 401
    assert PAGE.fullmatch("/") and PAGE.fullmatch("/r/a%20b?from=1&to=2") and PAGE.fullmatch("/r/run/groups/3?a=1&b=2")


def test_pages_load_nothing_from_elsewhere():
    for path in STATIC.rglob("*"):
        if path.suffix in (".js", ".css", ".html") and "vendor" not in path.parts:
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http:" not in text and "https:" not in text, path
            for word in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "DOMParser",
                "srcdoc",
            ):
                assert word not in text, f"{word} in {path}"


def test_what_is_vendored_has_its_licence():
    for package in (STATIC / "vendor").iterdir():
        assert (package / "LICENSE").read_text().strip() and "1." in (package / "README.md").read_text()


def test_the_stream_says_which_run_grew(tmp_path):
    config = make_run(tmp_path, steps=1)
    with serving([tmp_path], tmp_path) as address:
        base = address.partition("/?")[0]
        ask(base, "/api/runs/run")
        request = urllib.request.Request(f"{base}/api/stream", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=20) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            while stream.readline() != b": nothing new\n":
                pass
            write_group(config, 60, [episode(60, 0)])
            while (line := stream.readline()) != b"event: grew\n":
                assert line
            assert stream.readline() == b'data: ["run"]\n'
            ask(base, "/view", method="POST", body=b'{"url": "/r/run"}')
            while (line := stream.readline()) != b"event: view\n":
                assert line
            assert stream.readline() == b'data: "/r/run"\n'
