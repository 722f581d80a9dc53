"""
Ask a gateway through langchain-openai and print what came, as JSON.

Run by the tests with the interpreter of `.venv-clients`: URL MODEL.
"""

import json
import sys
from typing import Any

from langchain_openai import ChatOpenAI

_ASKED = "Say hello."


def main(url: str, name: str) -> None:
    """Ask plainly, in a stream, for a structure, and wrongly."""
    model = _model(url, name)
    plain = model.invoke(_ASKED)
    chunks = list(model.stream(_ASKED))
    found = {
        "text": plain.content,
        "finish_reason": plain.response_metadata["finish_reason"],
        "usage": plain.usage_metadata,
        "pieces": [each.content for each in chunks],
        "stream_usage": next(each.usage_metadata for each in chunks if each.usage_metadata),
        "structured": _model(url, name, 60).with_structured_output(_PERSON).invoke(_ASKED),
        "errors": [
            _error(_model(url, "gpt-9")),
            _error(model.bind(top_p=7)),
            _error(model.bind(max_tokens=999_999)),
        ],
    }
    print(json.dumps(found))  # noqa: T201 - that is how it answers


_PERSON = {
    "title": "person",
    "description": "Who it is.",
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [20, 30]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _model(url: str, name: str, max_tokens: int = 8) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="any",
        model=name,
        temperature=0,
        max_tokens=max_tokens,
        stream_usage=True,
        max_retries=0,
    )


def _error(model: Any) -> dict[str, Any]:  # Any: a model, with options or without
    try:
        model.invoke(_ASKED)
    except Exception as error:  # noqa: BLE001 - which one is what is asked
        return {"kind": type(error).__name__, "message": str(error)}
    raise AssertionError("it was served")


if __name__ == "__main__":
    main(*sys.argv[1:])
