"""Tools: what is asked for, and calls found in answers cut at every place."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.services.gateway.bodies import ChatBody
from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.plans import Asking, plan_chat
from slipstream.services.gateway.tool_calls import Arguments, CallBegins, ToolCallReader, Words
from slipstream.services.gateway.tools import CALL_END, CallForm, request_tools
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.tokenizer import Tokenizer

# A template with a place for tools, in the manner of Hermes.
_TEMPLATE = (
    "{% if tools %}[{% for tool in tools %}{{ tool | tojson }}{% endfor %}]"
    "<tool_call></tool_call>{% endif %}"
    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}|"
    "{% endfor %}"
)
TIME = {
    "name": "get_time",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
STOP = {"name": "stop"}
TOOLS = [{"type": "function", "function": TIME}, {"type": "function", "function": STOP}]
NAMED = {"type": "function", "function": {"name": "stop"}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A model whose template knows no tools."""
    return Tokenizer(write_fake_model(tmp_path_factory.mktemp("plain") / "fake"))


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A model whose template does."""
    directory = write_fake_model(tmp_path_factory.mktemp("hermes") / "fake")
    (directory / "chat_template.jinja").write_text(_TEMPLATE)
    return Tokenizer(directory)


def body(**fields: Any) -> ChatBody:
    messages = [{"role": "user", "content": "Hello"}]
    return msgspec.convert({"messages": messages, **fields}, ChatBody)


def request(tokenizer: Tokenizer, **fields: Any) -> Any:
    made = body(**fields)
    return request_tools(made, made.messages, tokenizer)


def test_without_tools_nothing_changes(plain: Tokenizer) -> None:
    for fields in ({}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}):
        found = request(plain, **fields)

        assert (None, None, body().messages) == (found.form, found.guided_json, found.messages)


def test_a_forced_call_is_a_schema_and_the_model_is_told_of_it(plain: Tokenizer) -> None:
    found = request(plain, tools=TOOLS, tool_choice=NAMED)

    assert "whole" == found.form
    assert {"const": "stop"} == found.guided_json["properties"]["name"]
    assert ["system", "user"] == [message.role for message in found.messages]
    assert '{"name":"stop"}' in found.messages[0].content
    assert "get_time" not in found.messages[0].content


def test_one_of_several_is_any_of_their_schemas(plain: Tokenizer) -> None:
    found = request(plain, tools=TOOLS, tool_choice="required")

    names = [each["properties"]["name"]["const"] for each in found.guided_json["anyOf"]]
    assert ["get_time", "stop"] == names


def test_what_the_system_says_already_stays(plain: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]

    found = request(plain, messages=messages, tools=TOOLS, tool_choice="required")

    assert found.messages[0].content.startswith("Be brief.\n\n")
    assert 2 == len(found.messages)


def test_definitions_are_found_where_references_look(plain: Tokenizer) -> None:
    parameters = {
        "type": "object",
        "properties": {"who": {"$ref": "#/$defs/Person"}},
        "$defs": {"Person": {"properties": {"boss": {"$ref": "#/$defs/Person"}}}},
    }
    tools = [{"function": {"name": "greet", "parameters": parameters}}, TOOLS[0]]

    schema = request(plain, tools=tools, tool_choice="required").guided_json

    who = schema["anyOf"][0]["properties"]["arguments"]["properties"]["who"]
    assert "$defs" not in schema["anyOf"][0]["properties"]["arguments"]
    assert {"#/$defs/0.Person"} == {
        who["$ref"],
        schema["$defs"]["0.Person"]["properties"]["boss"]["$ref"],
    }


def test_a_model_that_knows_no_tools_can_not_choose(plain: Tokenizer) -> None:
    with pytest.raises(ApiError, match="required") as raised:
        request(plain, tools=TOOLS)

    assert (400, "tools") == (raised.value.status, raised.value.param)


def test_a_model_that_knows_tools_is_told_by_its_template(hermes: Tokenizer) -> None:
    found = request(hermes, tools=TOOLS)
    text = hermes.decode(found.prompt_token_ids)

    assert ("marked", None, None) == (found.form, found.guided_json, found.messages)
    assert '"get_time"' in text
    assert text.endswith("user:Hello|")


@pytest.mark.parametrize("name", ["plain", "hermes"])
def test_calls_and_results_in_a_conversation_are_told(
    name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(name)
    call = {"id": "1", "function": {"name": "get_time", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "12:30"},
    ]
    made = body(messages=messages)
    found = request_tools(made, made.messages, tokenizer)

    if name == "hermes":
        assert "user:?|assistant:Rome|tool:12:30|" == tokenizer.decode(found.prompt_token_ids)
    else:
        contents = ["?", '{"name":"get_time","arguments":{"city":"Rome"}}', "12:30"]
        assert contents == [message.content for message in found.messages]
        assert not any(message.tool_calls or message.tool_call_id for message in found.messages)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "web", "function": STOP}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "f", "parameters": 5}}]}, "tools[0].function.parameters"),
        ({"tools": [TOOLS[0]] * 129}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "no"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
    ],
)
def test_tools_that_make_no_sense_are_refused_by_name(
    plain: Tokenizer, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as raised:
        request(plain, **fields)

    assert (400, param) == (raised.value.status, raised.value.param)


def test_a_single_call_is_asked_for_by_ending_the_answer_after_it(hermes: Tokenizer) -> None:
    asked = body(tools=TOOLS, parallel_tool_calls=False, stop="###")
    made = plan_chat(asked, Asking("r"), hermes)

    assert ("marked_once", ["###", CALL_END]) == (made.call_form, made.requests[0].stop)
    allowed = plan_chat(body(tools=TOOLS, parallel_tool_calls=True), Asking("r"), hermes)
    assert ("marked", None) == (allowed.call_form, allowed.requests[0].stop)


def read(form: CallForm, *pieces: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the words, and the calls with their arguments."""
    reader = ToolCallReader(form)
    found = [piece for text in pieces for piece in reader.feed(text)] + reader.close()
    calls: list[tuple[str, str]] = []
    words = ""
    for piece in found:
        match piece:
            case Words():
                words += piece.text
            case CallBegins():
                assert len(calls) == piece.index
                calls.append((piece.name, ""))
            case Arguments():
                assert len(calls) - 1 == piece.index
                calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    assert reader.num_calls == len(calls)
    return words, calls


WHOLE = '{"name": "say", "arguments": {"a": "}\\"{", "b": [1, {"c": "]"}]}}'
MARKED = f"Let me see.\n<tool_call>\n{WHOLE}\n</tool_call>\n<tool_call>{WHOLE}</tool_call>\n"
SAID = ("say", '{"a": "}\\"{", "b": [1, {"c": "]"}]}')


@given(st.lists(st.integers(0, len(MARKED)), max_size=12))
def test_calls_are_found_wherever_the_answer_is_cut(cuts: list[int]) -> None:
    def pieces(text: str) -> list[str]:
        ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(ends)]

    assert ("", [SAID]) == read("whole", *pieces(WHOLE))
    assert ("Let me see.\n", [SAID, SAID]) == read("marked", *pieces(MARKED))
    assert ("Let me see.\n", [SAID]) == read("marked_once", *pieces(MARKED + "And more."))


def test_arguments_come_as_they_are_made() -> None:
    reader = ToolCallReader("whole")

    assert [] == reader.feed('{"name": "sa')
    (begins,) = reader.feed('y", "arguments": ')
    assert isinstance(begins, CallBegins)
    assert [Arguments(0, '{"a"')] == reader.feed('{"a"')
    assert [Arguments(0, ": 1}")] == reader.feed(": 1}}")
    assert [] == reader.close()


def test_a_call_that_is_cut_short_is_as_far_as_it_came() -> None:
    assert ("", [("say", '{"a": "x')]) == read("whole", '{"name":"say","arguments":{"a": "x')


def test_arguments_may_stand_before_the_name() -> None:
    assert ("", [("f", '{"a":1}')]) == read("whole", '{"arguments":{"a":1},"name":"f"}')


def test_what_is_no_call_is_words() -> None:
    assert ("<tool>5 < 6", []) == read("marked", "<tool>5 <", " 6")
    assert ("nonsense", []) == read("marked", "<tool_call>nonsense</tool_call>")


def test_a_template_is_asked_for_its_tools(tmp_path: Path, hermes: Tokenizer) -> None:
    directory = write_fake_model(tmp_path / "fake")
    (directory / "chat_template.jinja").write_text("{% set tools = 1 %}{{ tools }}")

    assert hermes.marks_tool_calls
    assert not Tokenizer(directory).knows_tools
