"""The pages in a browser, over a run of the system's own writers."""

import json
import time
import urllib.request

import pytest

from rl_system.tracking.tracker import Tracker
from tests.rl_system.viewer.browser import Browser, find_browser
from tests.rl_system.viewer.world import HOSTILE, TOKEN, add_step, episode, make_run, serving, write_group

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A browser with the viewer's cookie, the run that it shows, and the viewer's address."""
    folder = tmp_path_factory.mktemp("pages")
    config = make_run(folder / "runs")
    write_group(config, 70, [episode(70, i, i / 2, text=HOSTILE, task=HOSTILE) for i in range(2)])
    with serving([folder / "runs"], folder) as address:
        browser = Browser(find_browser(), folder / "chromium")
        try:
            browser.open(address)
            yield browser, config, address.partition("/?")[0]
        finally:
            browser.close()


PAGES = [
    "/",
    "/r/run",
    "/r/run?over=update&from=2&to=4&metrics=train/entropy",
    "/r/run/episodes",
    "/r/run/episodes?task=hard&sort=errors",
    "/r/run/groups/2",
    "/r/run/groups/2?a=0&b=1",
    "/r/run/episodes/g000002.1",
    "/r/run/episodes/g000002.2?turn=1&tokens=0-1&overlay=version",
    "/r/run/episodes/e0.1",
    "/r/run/groups/70",
    "/r/run/groups/2/tree",
    "/r/run/steps/2/tree?root=1&colour=sharing",
    "/r/run/episodes/g000070.1?overlay=mask",
]
UNLABELLED = """[...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"], figure, svg, canvas')].filter((each) =>
  !each.closest('[aria-hidden="true"]') && !(each.tagName === 'CANVAS' && each.closest('figure[aria-label]'))
  && !(each.textContent.trim() && ['A', 'BUTTON', 'SUMMARY'].includes(each.tagName)) && !each.labels?.length
  && !each.getAttribute('aria-label')).map((each) => each.outerHTML.slice(0, 120))"""
CONTRAST = """(() => {
  const parse = (text) => { const found = text.match(/[\\d.]+/g).map(Number); return found.length < 4 ? [...found, 1] : found; };
  const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map((c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
  const behind = (element) => { const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, [r, g, b, a]) => [r * a + under[0] * (1 - a), g * a + under[1] * (1 - a), b * a + under[2] * (1 - a)], [255, 255, 255]); };
  return [...document.querySelectorAll('body *')].filter((each) => each.checkVisibility() && !each.disabled
      && [...each.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
    .map((each) => { const [a, b] = [light(parse(getComputedStyle(each).color)), light(behind(each))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.tagName + '.' + each.className + ' ' + each.textContent.slice(0, 30)]; })
    .filter(([ratio]) => ratio < 4.5).map(([ratio, what]) => `${ratio.toFixed(2)} ${what}`);
})()"""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_without_a_complaint_and_can_be_read_by_everybody(world, page):
    browser, _, base = world
    browser.complaints.clear()
    browser.open(base + page)
    assert browser.run(
        "document.querySelector('.fault') === null && document.querySelector('h1').textContent.length > 2"
    )
    assert browser.run(UNLABELLED) == [] and browser.run(CONTRAST) == []
    assert browser.run("[document.documentElement.lang, document.querySelectorAll('h1').length]") == ["en", 1]
    assert browser.complaints == []


def test_what_is_not_there_is_told(world):
    browser, _, base = world
    for page in (
        "/r/none",
        "/r/run/groups/999",
        "/r/run/episodes/g000999.0",
        "/r/run/episodes?sort=x",
        "/r/run/nothing",
    ):
        browser.open(base + page)
        browser.wait("document.querySelector('.fault')?.textContent.length > 5")
    browser.complaints.clear()


def test_the_overview_draws_all_charts_over_one_axis_and_a_stretch_moves_them_all(world):
    browser, _, base = world
    browser.open(f"{base}/r/run?over=update")
    titles = browser.run("[...document.querySelectorAll('figcaption')].map((each) => each.firstChild.textContent)")
    assert titles == ["Reward", "Held-out success", "Entropy", "Staleness", "Idle and waiting", "Accelerators"]
    assert browser.run("document.querySelector('figure').ariaLabel") == "Reward: all from 0.1 to 0.6"
    x, y, width = browser.run(
        "(() => { const box = document.querySelector('.u-over').getBoundingClientRect(); return [box.x, box.y, box.width]; })()"
    )
    browser.drag(x + width / 6, y + 50, x + width * 4 / 6, y + 50)
    browser.wait("new URLSearchParams(location.search).has('from')")
    begin, end = browser.run("['from', 'to'].map((name) => Number(new URLSearchParams(location.search).get(name)))")
    assert begin == pytest.approx(1, abs=0.1) and end == pytest.approx(4, abs=0.1)
    steps = browser.run("[...document.querySelectorAll('main table')].at(-1).querySelectorAll('a.row').length")
    assert steps in (3, 4)
    browser.open(base + "/r/run?over=update&from=1.5&to=3.5")
    assert browser.run(
        "[...[...document.querySelectorAll('main table')].at(-1).querySelectorAll('a.row')].map((each) => each.textContent)"
    ) == ["3", "2"]
    browser.run("[...document.querySelectorAll('button')].find((each) => each.textContent === 'The whole run').click()")
    assert browser.run("location.search") == "?over=update"


ROWS = "[...document.querySelectorAll('a.row')].map((each) => each.textContent)"


def test_filters_stand_in_the_address_and_an_address_is_a_filter(world):
    browser, _, base = world
    browser.open(f"{base}/r/run/episodes?task=task-2&sort=reward")
    assert browser.run(ROWS) == ["g000002.2", "g000002.1", "g000002.0"]
    browser.open(f"{base}/r/run/episodes")
    browser.press("/")
    assert browser.run("document.activeElement.id") == "q"
    browser.type("word3")
    browser.wait("location.search === '?q=word3'")
    browser.wait(f"{ROWS}.length === 3")
    browser.run(
        "(() => { const kind = document.getElementById('kind'); kind.value = 'dropped'; kind.dispatchEvent(new Event('change')); })()"
    )
    browser.wait("location.search === '?q=word3&dropped=true'")
    browser.wait(f"{ROWS}.length === 0")


def test_a_bin_of_the_histogram_is_a_filter(world):
    browser, _, base = world
    browser.open(f"{base}/r/run/episodes?task=task-2")
    browser.run("[...document.querySelectorAll('.histogram button')].at(-1).click()")
    browser.wait(f"{ROWS}.join() === 'g000002.2'")
    assert browser.run("new URLSearchParams(location.search).get('reward_max')") == "1"


def test_an_address_names_a_turn_and_its_tokens(world):
    browser, _, base = world
    browser.open(f"{base}/r/run/episodes/g000002.2?turn=1&tokens=0-1&overlay=version")
    assert browser.run(
        "[...document.querySelectorAll('.token.picked')].map((each) => [each.closest('section').id, each.textContent.trim()])"
    ) == [["turn-1", "10"], ["turn-1", "22"]]
    assert browser.run("document.getElementById('overlay').value") == "version"
    colours = browser.run(
        "[0, 1].map((turn) => document.querySelector(`#turn-${turn} > .tokens .token`).style.backgroundColor)"
    )
    assert len(set(colours)) == 2  # the versions of the two turns


def test_messages_thoughts_and_calls_stand_apart(world):
    browser, _, base = world
    browser.open(f"{base}/r/run/episodes/g000002.1")
    assert browser.run("[...document.querySelectorAll('.message .who b')].map((each) => each.textContent)") == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert browser.run("document.querySelector('.message.assistant .thinking pre').textContent") == "I wonder"
    assert browser.run("document.querySelector('.message.assistant > pre').textContent") == "answer 0"
    assert browser.run("document.querySelector('.call code').textContent") == "look"
    assert browser.run("document.querySelector('.message.tool details').open") is False


def test_a_group_shows_where_two_members_part(world):
    browser, _, base = world
    browser.open(f"{base}/r/run/groups/2?a=0&b=2")
    browser.wait("document.body.textContent.includes('The first 6 tokens are the same')")
    assert browser.run("[...document.querySelectorAll('.only-a')].map((each) => each.textContent.trim())") == ["20"]


def test_hostile_text_stays_text(world):
    browser, _, base = world
    browser.complaints.clear()
    for page in ("/r/run/episodes/g000070.1", "/r/run/groups/70", "/r/run/episodes", "/r/run"):
        browser.open(base + page)
        browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        time.sleep(0.1)
        assert browser.run(
            "window.hurt === undefined && document.querySelectorAll('main img, main script, main style, main iframe').length === 0"
        )
        assert browser.run("[...document.querySelectorAll('a')].every((each) => !each.href.startsWith('javascript'))")
        assert browser.run("document.body.textContent.includes('<script>window.hurt = 1</script>')")
        assert browser.run("getComputedStyle(document.body).display") == "block"
    assert browser.complaints == []


def test_scripts_of_others_are_stopped_by_the_policy(world):
    browser, _, base = world
    browser.open(f"{base}/r/run")
    browser.run(
        "(() => { const bad = document.createElement('script'); bad.textContent = 'window.hurt = 1'; document.body.append(bad); "
        "const div = document.createElement('div'); div.innerHTML = '<img src=x onerror=\"window.hurt = 2\">'; document.body.append(div); })()"
    )
    time.sleep(0.3)
    assert browser.run("window.hurt === undefined")
    assert any("Content Security Policy" in each for each in browser.complaints)
    browser.complaints.clear()


def test_keys_lead_through_rows_and_members(world):
    browser, _, base = world
    browser.open(f"{base}/r/run/episodes?task=task-2&sort=oldest")
    browser.press("j")
    browser.press("j")
    browser.press("k")
    assert browser.run("document.activeElement.textContent") == "g000002.0"
    browser.press("Enter")
    browser.wait(
        "location.pathname.endsWith('g000002.0') && document.querySelector('main').getAttribute('aria-busy') === 'false'"
    )
    browser.press("]")
    browser.wait(
        "location.pathname.endsWith('g000002.1') && document.querySelector('main').getAttribute('aria-busy') === 'false'"
    )
    browser.run("document.querySelector('#turn-0 > .tokens .strip').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert "token 1" in browser.run("document.querySelector('#turn-0 > .tokens output').textContent")
    assert "probability 0.135" in browser.run("document.querySelector('#turn-0 > .tokens output').textContent")
    browser.run("history.back()")
    browser.wait("location.pathname.endsWith('g000002.0')")


def test_a_run_that_goes_on_grows_under_the_open_page(world):
    browser, config, base = world
    browser.open(f"{base}/r/run/episodes?step=7")
    assert browser.run(ROWS) == []
    browser.wait("document.getElementById('live').textContent === 'live'")
    with Tracker(config, resume_step=6) as tracker:
        add_step(config, tracker, 7)
    browser.wait(f"{ROWS}.length === 3")
    assert browser.complaints == []


def test_a_program_moves_the_open_page(world):
    browser, _, base = world
    browser.open(f"{base}/r/run")
    browser.wait("document.getElementById('live').textContent === 'live'")
    request = urllib.request.Request(
        f"{base}/view",
        json.dumps({"url": "/r/run/episodes/g000002.1?turn=0&tokens=1-2"}).encode(),
        {"Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["pages"] >= 1
    browser.wait("document.querySelectorAll('.token.picked').length === 2")
