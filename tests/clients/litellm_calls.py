"""
Ask a gateway through LiteLLM and print what came, as JSON.

Run by the tests with the interpreter of `.venv-clients`: URL MODEL.
"""

import json
import sys
from typing import Any

import litellm

_MESSAGES = [{"role": "user", "content": "Say hello."}]


def main(url: str, model: str) -> None:
    """Ask plainly, in a stream, and wrongly."""
    same: dict[str, Any] = {  # Any: options of every type
        "model": f"openai/{model}",
        "api_base": f"{url}/v1",
        "api_key": "any",
        "messages": _MESSAGES,
        "temperature": 0,
        "max_tokens": 8,
        "num_retries": 0,
    }
    plain = litellm.completion(**same)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(**same, **options))
    found = {
        "text": plain.choices[0].message.content,
        "finish_reason": plain.choices[0].finish_reason,
        "usage": plain.usage.model_dump(),
        "pieces": [each.choices[0].delta.content or "" for each in chunks if each.choices],
        "stream_usage": next(
            usage.model_dump() for each in chunks if (usage := getattr(each, "usage", None))
        ),
        "errors": [
            _error({**same, "model": "openai/gpt-9"}),
            _error({**same, "top_p": 7}),
            _error({**same, "max_tokens": 999_999, "stream": True}),
        ],
    }
    print(json.dumps(found))  # noqa: T201 - that is how it answers


def _error(options: dict[str, Any]) -> dict[str, Any]:
    try:
        litellm.completion(**options)
    except litellm.exceptions.APIError as error:
        raise AssertionError("an error of ours is the client's, none of the server's") from error
    except Exception as error:  # noqa: BLE001 - which one is what is asked
        return {"kind": type(error).__name__, "message": str(error)}
    raise AssertionError("it was served")


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    main(*sys.argv[1:])
