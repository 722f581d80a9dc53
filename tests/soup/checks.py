"""Whether everybody was answered once, in order, and right."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.end_to_end import client
from tests.end_to_end.client import Answer

from .orders import Order
from .plain import Expected, Logprobs, PlainModel, Said
from .serving import Resumed, Served, Table

_MAX_TOLD = 3000  # characters of an order


# What those in a hurry may be told instead of being accepted.
_TOLD_AT_THE_DOOR = (["overloaded"], ["deadline_exceeded"])


class Checker:
    """Compares what came with what a plain model says."""

    def __init__(self, model: PlainModel, table: Table, seed: int, num_blocks: int) -> None:
        self._model = model
        self._table = table
        self._seed = seed
        self._num_blocks = num_blocks
        self.num_whole = 0  # choices that were compared from beginning to end

    async def check(self) -> None:
        """Check everything that was served. An assertion says the seed and the order."""
        for served in self._table.served:
            if served.order.fate != "leave":
                with self._telling(served.order):
                    await self._check(served)

    @contextmanager
    def _telling(self, order: Order) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            message = f"seed {self._seed}, {str(order)[:_MAX_TOLD]}: {error}"
            raise AssertionError(message) from error

    async def _check(self, served: Served) -> None:
        assert served.messages, "it was never answered"
        if served.order.error is not None:
            _check_refused(served)
            return
        if served.order.fate == "hurry" and _codes(served) in _TOLD_AT_THE_DOOR:
            return  # it could be seen at the door that there wouldn't be time
        _check_kinds(served)
        assert served.num_choices == len(served.endings), "a wrong number of endings"
        payload = client.encode(served.order.body, served.order.encoding)
        expected = await self._model.answer(payload, _seed_of(served))
        if "waiting" in self._phases(served) and len(expected.choices) == 1:
            assert "failed" == served.endings[0]["type"], "cancelled while it waited, it went on"
        if served.order.is_streamed:
            self._check_stream(served, expected)
        else:
            self._check_plain(served, expected)
        for resumed in served.resumed:
            _check_resumed(served, resumed, expected)

    def _check_plain(self, served: Served, expected: Expected) -> None:
        (answer,) = served.messages
        if answer["type"] == "failed":
            self._check_failed(served, answer, expected, expected.choices)
            return
        self._check_whole(answer, expected)
        assert len(expected.choices) == len(answer["choices"])
        for position, said in enumerate(expected.choices):
            choice = answer["choices"][position]
            assert position == choice.get("index", 0)
            self._check_ending(served, choice, len(choice["token_ids"]), said)
            _check_part(choice, 0, said)
        num_tokens = sum(len(choice["token_ids"]) for choice in answer["choices"])
        assert num_tokens == answer["usage"]["num_output_tokens"]

    def _check_stream(self, served: Served, expected: Expected) -> None:
        assert expected.num_prompt_tokens == served.messages[0]["num_prompt_tokens"]
        for choice, said in enumerate(expected.choices):
            found = served.of_choice(choice)
            kinds = [each["type"] for each in found.messages]
            assert 1 == len(found.endings), kinds
            behind = found.messages[found.messages.index(found.ending) + 1 :]
            # The scheduler says that a prompt lives until it hears that its answer is over.
            assert not any(each.get("token_ids") or each.get("text") for each in behind), kinds
            assert {"token_frame"} >= {each["type"] for each in behind}, kinds
            for frame in found.frames:
                _check_frame(frame, said)
            # No index is missing: else this raises.
            num_tokens, num_characters = len(found.token_ids), len(found.text)
            if found.ending["type"] == "failed":
                self._check_failed(served, found.ending, expected, [said])
                continue
            self._check_whole(found.ending, expected)
            self._check_ending(served, found.ending, num_tokens, said)
            counted = (found.ending["num_tokens"], found.ending["text_length"])
            assert (num_tokens, num_characters) == counted
            assert num_tokens == found.ending["usage"]["num_output_tokens"]

    def _check_whole(self, answer: Answer, expected: Expected) -> None:
        """Compare what an answer says beside its choices."""
        usage = answer["usage"]
        assert expected.num_prompt_tokens == usage["num_prompt_tokens"]
        assert usage.get("num_cached_tokens", 0) < expected.num_prompt_tokens
        assert expected.num_blocks <= self._num_blocks, "there can't have been room"
        drafts = [usage.get(f"num_{name}_tokens", 0) for name in ("accepted", "tested", "drafted")]
        assert sorted(drafts) == drafts
        reasons = {each.get("finish_reason") for each in (answer, *answer.get("choices", ()))}
        _check_prompt(answer.get("prompt"), expected.prompt, is_whole="abort" not in reasons)

    def _check_ending(self, served: Served, ending: Answer, num_tokens: int, said: Said) -> None:
        """Compare how a choice ended: all was said, or it was cancelled before."""
        if ending["finish_reason"] == "abort":
            assert self._is_cancelled(served), "nobody cancelled it"
            return
        assert said.error is None, f"it can't be answered: {said.error}"
        assert len(said.token_ids) == num_tokens
        found = (ending["finish_reason"], ending.get("stop_reason"))
        assert (said.finish_reason, said.stop_reason) == found
        self.num_whole += 1

    def _check_failed(
        self, served: Served, failed: Answer, expected: Expected, choices: list[Said]
    ) -> None:
        allowed = {each.error for each in choices if each.error is not None}
        if self._is_cancelled(served):
            allowed.add("cancelled")
        if served.order.fate == "hurry":
            allowed.add("deadline_exceeded")
        if expected.num_blocks > self._num_blocks:
            allowed.add("kv_too_large")
        assert failed["code"] in allowed, failed

    def _is_cancelled(self, served: Served) -> bool:
        # What met nothing, or an ending, changes nothing.
        return bool(self._phases(served) - {"unknown", "ended"})

    def _phases(self, served: Served) -> set[str]:
        """Return in which phases it was cancelled, or one of its choices."""
        return {
            phase
            for told, phases in self._table.phases.items()
            if told == served.request_id or told.startswith(f"{served.request_id}c")
            for phase in phases
        }


def _check_refused(served: Served) -> None:
    (failed,) = served.messages
    field = failed.get("field")
    assert "failed" == failed["type"], failed
    assert served.order.error == (failed["code"], field and field.partition("[")[0]), failed
    assert "request_id" not in failed


def _codes(served: Served) -> list[str | None]:
    return [each.get("code") for each in served.messages]


def _check_kinds(served: Served) -> None:
    """One answer; or accepted once, then frames and endings, under the ids that are due."""
    kinds = [each["type"] for each in served.messages]
    if not served.order.is_streamed:
        assert kinds in (["completion"], ["failed"]), kinds
        return
    assert "accepted" == kinds[0], kinds
    assert set(kinds[1:]) <= {"token_frame", "finished", "failed"}, kinds
    assert isinstance(served.order.body, dict), "only a right one is accepted"
    has_several = served.order.body.get("n", 1) > 1
    for message in served.messages[1:]:
        suffix = f"c{message.get('choice', 0)}" if has_several else ""
        assert f"{served.request_id}{suffix}" == message["request_id"]


def _check_prompt(found: Answer | None, expected: Answer | None, *, is_whole: bool) -> None:
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return
    assert expected["token_ids"] == found["token_ids"]
    assert expected.get("text", "") == found.get("text", "")
    scores, all_scores = found.get("logprobs"), expected.get("logprobs")
    if scores is not None and all_scores is not None and not is_whole:
        all_scores = all_scores[: len(scores)]
    assert all_scores == scores


def _check_frame(frame: Answer, said: Said) -> None:
    assert frame["index"] < len(said.offsets), "a frame beyond the answer"
    assert said.offsets[frame["index"]] == frame["text_offset"]
    _check_part(frame, frame["index"], said)


def _check_part(part: Answer, first: int, said: Said) -> None:
    """Compare tokens, their text and their logprobs with what is said from a token on."""
    end = first + len(part["token_ids"])
    assert said.token_ids[first:end] == part["token_ids"]
    assert said.text[said.offsets[first] : said.offsets[end]] == part["text"]
    found: list[Logprobs] = part.get("logprobs") or []
    assert said.logprobs[first:end] == found


def _check_resumed(served: Served, resumed: Resumed, expected: Expected) -> None:
    assert resumed.messages, "a resume was never answered"
    endings = [each for each in served.endings if each.get("choice", 0) == resumed.choice]
    for message in resumed.messages:
        kind = message["type"]
        if kind == "token_frame":
            _check_frame(message, expected.choices[resumed.choice])
        elif kind in ("finished", "failed") and message.get("code") != "not_found":
            assert not served.order.is_streamed or message in endings, "another ending"
        else:
            assert kind in ("accepted", "failed"), message


def _seed_of(served: Served) -> int:
    """Return the seed that the answer names; of one that failed the one it asked for."""
    seeds = (each["seed"] for each in served.messages if "seed" in each)
    assert isinstance(served.order.body, dict), "only a right one has a seed"
    seed: int = next(seeds, served.order.body.get("seed", 0))
    return seed
