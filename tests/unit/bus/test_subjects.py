"""Subjects: what may stand in them and who may be answered."""

import pytest

from slipstream.shared.bus.memory_bus import matches
from slipstream.shared.bus.subjects import (
    CANCEL,
    GENERATE,
    GENERATE_MODEL,
    KV,
    KV_VERBS,
    MANAGER_VERBS,
    PREFIX,
    TOPICS,
    Topic,
    is_inbox,
    last_token,
    model_token,
)
from slipstream.shared.messages.codec import decoder_of


def test_placeholders_become_tokens() -> None:
    assert "slipstream.v1.kv.h0.lease" == KV.subject(host_id="h0", verb="lease")
    assert "slipstream.v1.kv.*.*" == KV.wildcard
    assert GENERATE.pattern == GENERATE.subject() == GENERATE.wildcard


@pytest.mark.parametrize(
    "token", ["", "*", ">", "a.b", "a b", "a\n", "a\t", "\N{LATIN SMALL LETTER A WITH ACUTE}", "$S"]
)
def test_token_that_would_widen_a_subject_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="request_id"):
        CANCEL.subject(request_id=token)


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.pattern)
def test_wildcard_covers_every_subject_of_its_topic(topic: Topic) -> None:
    names = {"key": "k", "model": "m", "request_id": "r", "worker_id": "w", "host_id": "h"}
    subject = topic.subject(**names, verb="lease", role="kv", reason="expired")

    assert subject.startswith(f"{PREFIX}.")
    assert matches(topic.wildcard, subject)


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.pattern)
def test_every_topic_can_be_decoded(topic: Topic) -> None:
    """Building a decoder fails for a union that can't be told apart."""
    decoder_of(topic.message)
    if topic.reply is not None:
        decoder_of(topic.reply)


def test_no_two_topics_overlap() -> None:
    overlaps = [
        (one.pattern, other.pattern)
        for one in TOPICS
        for other in TOPICS
        if one is not other and matches(one.wildcard, other.wildcard)
    ]

    assert [] == overlaps


def test_every_verb_of_the_manager_has_its_answer() -> None:
    for _, reply in KV_VERBS.values():
        decoder_of(reply)

    assert len(KV_VERBS) == len({verb for verb, _ in KV_VERBS.values()})
    assert "reclaim" not in MANAGER_VERBS


@pytest.mark.parametrize(
    ("model", "token"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("org/Name-1.5", "org-name-1-5"),
        ("a.b.>*", "a-b"),
        ("  ", "model"),
        ("", "model"),
        ("\N{CJK UNIFIED IDEOGRAPH-4E16}", "model"),
    ],
)
def test_model_becomes_one_token(model: str, token: str) -> None:
    assert token == model_token(model)
    assert GENERATE_MODEL.subject(model=model_token(model))


def test_last_token_is_the_id() -> None:
    assert "r1" == last_token(CANCEL.subject(request_id="r1"))


@pytest.mark.parametrize(
    "subject", ["_INBOX.abc", "_INBOX.abc.def", "_INBOX_gateway.x1", "_INBOX.a$b-c_d"]
)
def test_inboxes_may_be_answered(subject: str) -> None:
    assert is_inbox(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "_INBOX",
        "inbox.abc",
        "slipstream.v1.cancel.r1",
        "$JS.API.STREAM.DELETE.x",
        "x._INBOX.abc",
        "_INBOX.*",
        "_INBOX.>",
        "_INBOX.a b",
        "_INBOX.a\r\nPUB x 0",
        "_INBOX.a\0",
        "_INBOX." + "a" * 5000,
    ],
)
def test_nothing_else_may_be_answered(subject: str) -> None:
    """Clients choose the reply subject; an overlong one would have the server cut us off."""
    assert not is_inbox(subject)
