"""The web console in a real browser, on a stack of real processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .browser import NAMES, Browser, find_chromium, running_browser
from .conftest import StartStack
from .stack import Stack, running, wait_until

_CHROMIUM = find_chromium()

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        _CHROMIUM is None,
        reason=f"no browser: install one of {', '.join(NAMES)} (Debian: apt install chromium)",
    ),
]

# Slow enough to be seen: a prompt of a hundred tokens takes half a second, a token 25 ms.
_FAKE = ["--test-mode", "--engine", "fake", "--route", "remote"]
_VARIABLES = {"SLIPSTREAM_FAKE_STEP_MS": "20", "SLIPSTREAM_FAKE_ROW_US": "5000"}
_QUESTION = "Tell me of the river, of the mountain it comes from, and of the sea it goes to."
_IS_IDLE = "document.querySelector('#cancel').hidden"
_OWN = "document.querySelector('.rows .own')"
# Keeps every stage that the newest request of the page's own is seen in.
_NOTE_STAGES = """
window.stages = [];
new MutationObserver(() => {
  const stage = document.querySelector('.rows .own')?.dataset.stage;
  if (stage && stage !== window.stages.at(-1)) window.stages.push(stage);
}).observe(document.querySelector('#rows'), {subtree: true, childList: true, attributes: true});
"""

OpenPage = Callable[[Stack], Browser]


@pytest.fixture(scope="module")
def slow_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(_FAKE, tmp_path_factory.mktemp("console"), _VARIABLES) as started:
        yield started


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[OpenPage]:
    """A function that opens the console; in the end the page must not have complained."""
    assert _CHROMIUM is not None, "skipped without"
    with running_browser(_CHROMIUM, tmp_path / "profile") as browser:

        def go(stack: Stack) -> Browser:
            status = stack.status("gateway")
            assert status is not None
            browser.look_like(width=1440, height=900)
            browser.open(f"{status.http_url}/")
            return browser

        yield go


def wait_live(page: Browser) -> None:
    page.wait_for("document.querySelector('#link').dataset.status === 'live'")


def ask(page: Browser, question: str, max_tokens: int) -> None:
    page.evaluate("document.querySelector('#settings').open = true")
    page.evaluate("document.querySelector('#max-tokens').value = ''")
    page.type("#max-tokens", str(max_tokens))
    page.type("#prompt", question)
    page.press("Enter", 13)


def test_a_question_is_answered_and_seen_on_its_way(
    slow_stack: Stack, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(slow_stack)
    wait_live(page)
    page.evaluate(_NOTE_STAGES)
    ask(page, _QUESTION, 80)
    length = "document.querySelector('.answer .text').textContent.length"
    early = page.wait_for(f"{length} > 0 && {length}")
    late = page.wait_for(f"{length} > {early} && !{_IS_IDLE} && {length}")
    seats = "document.querySelector('.box-decode .box-main').textContent"
    page.wait_for(f"{seats} === '1 of 34 seats' && !{_IS_IDLE}")
    page.wait_for(_IS_IDLE)
    page.wait_for(f"{_OWN}?.dataset.stage === 'finished'")
    page.screenshot(tmp_path / "console.png")
    stages = page.evaluate("window.stages")
    figures = page.evaluate("document.querySelector('.answer .figures').innerText")
    parts = page.evaluate(f"[...{_OWN}.querySelectorAll('.bar i')].map((each) => each.className)")
    page.evaluate(f"{_OWN}.querySelector('.row').click()")
    details = page.evaluate(f"{_OWN}.querySelector('.details').innerText")

    assert late > early, "the text came in pieces"
    assert ["prefilling", "decoding", "finished"] == [
        stage for stage in stages if stage not in ("queued", "handing_over")
    ]
    assert {"part-prefill", "part-hand-over", "part-decode"} <= set(parts)
    for each in ("first token", "tokens/s", "seed", "request", "trace"):
        assert each in figures
    assert "prefill-" in details
    assert "decode-" in details
    assert [] == page.problems
    assert (tmp_path / "console.png").stat().st_size > 20_000


def test_stop_cancels_the_request_in_the_engine(slow_stack: Stack, open_page: OpenPage) -> None:
    page = open_page(slow_stack)
    wait_live(page)
    ask(page, "Go on for ever.", 1500)
    page.wait_for("document.querySelector('.streaming .text')?.textContent.length > 5")
    page.click("#cancel")
    page.wait_for("document.querySelector('.answer.cancelled') !== null")
    page.wait_for(f"{_OWN}?.dataset.stage === 'cancelled'")

    def is_cancelled() -> bool:
        return any(
            line.get("event") == "decode_done" and line.get("finish_reason") == "abort"
            for line in slow_stack.log
        )

    assert wait_until(is_cancelled, 5.0), "the decode worker goes on"
    assert page.evaluate(_IS_IDLE)
    assert [] == page.problems


def test_an_error_is_shown_as_it_was_given(slow_stack: Stack, open_page: OpenPage) -> None:
    page = open_page(slow_stack)
    page.evaluate("document.querySelector('#settings').open = true")
    page.type("#temperature", "9")
    page.type("#prompt", "Hello?")
    page.click("#send")
    told = page.wait_for("document.querySelector('.trouble')?.textContent")
    prompt = page.evaluate("document.querySelector('#prompt').value")

    assert "invalid_request" in told
    assert "temperature" in told
    assert "Hello?" == prompt, "the question is there to be changed"


def test_a_seed_gives_the_same_answer_again(slow_stack: Stack, open_page: OpenPage) -> None:
    """A seed has more digits than a number of JavaScript: none may get lost on either way."""
    page = open_page(slow_stack)
    page.evaluate("document.querySelector('#settings').open = true")
    page.type("#seed", "9007199254740993")
    ask(page, "Once.", 12)
    seed = page.wait_for(
        "[...document.querySelectorAll('.chip')].find((each) => each.innerText.includes('seed'))"
        "?.innerText"
    )

    assert "9007199254740993" in seed


def test_a_key_is_asked_for_where_there_are_keys(
    start_stack: StartStack, open_page: OpenPage
) -> None:
    page = open_page(start_stack(_FAKE, {**_VARIABLES, "SLIPSTREAM_API_KEY_LIST": "sesame me"}))
    page.wait_for("!document.querySelector('#key-form').hidden")
    page.type("#key", "sesame")
    page.click("#key-form button")
    page.wait_for("document.querySelector('#model').textContent === 'fake'")
    wait_live(page)
    ask(page, "Hello?", 5)
    page.wait_for("document.querySelector('.answer .figures')?.innerText.includes('seed')")

    assert ["slipstream.key"] == page.evaluate(
        "Object.keys(sessionStorage).filter((each) => sessionStorage[each].includes('sesame'))"
    )
    assert 0 == page.evaluate("localStorage.length + document.cookie.length")


def test_it_fits_a_phone_and_everything_has_a_name(slow_stack: Stack, open_page: OpenPage) -> None:
    page = open_page(slow_stack)
    page.look_like(width=360, height=740)
    wait_live(page)
    widths = []
    for tab in ("#tab-pipeline", "#tab-chat"):
        page.click(tab)
        widths.append(page.evaluate("document.documentElement.scrollWidth"))
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    nameless = [
        node
        for node in nodes
        if node.get("role", {}).get("value") in ("button", "textbox", "spinbutton", "image")
        and not node.get("ignored")
        and not node.get("name", {}).get("value")
    ]

    assert [360, 360] == widths
    assert [] == nameless
