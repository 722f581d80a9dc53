"""Read bodies: what is not served is refused by name, what nobody knows warned of."""

from typing import Any, TypeVar

import msgspec
import structlog

from slipstream.services.gateway.errors import invalid
from slipstream.shared.messages.whole_numbers import TOO_LARGE, field_too_large
from slipstream.shared.openai.fields import IGNORED, REFUSED, is_refused

log = structlog.get_logger()

BodyT = TypeVar("BodyT", bound=msgspec.Struct)

_MAX_NUM_WARNED = 256  # names of unknown fields: nobody may fill the memory, or the log
_MAX_NAME_CHARACTERS = 128

_WHERE_AT = " - at "
_MISSING = "Object missing required field `"


class BodyReader:
    """Reads bodies; warns of each unknown name once."""

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._names = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._decoders: dict[type, Any] = {}  # Any: decoders of several types

    def read(self, body: bytes, kind: type[BodyT]) -> BodyT:
        """Decode a body. Raises ApiError that names the field."""
        try:
            for name, raw in self._names.decode(body).items():
                if name not in kind.__struct_fields__:
                    self._look_at(name, raw)
            decoder = self._decoders.setdefault(kind, msgspec.json.Decoder(kind))
            read: BodyT = decoder.decode(body)
            too_large = field_too_large(body, read)
        except msgspec.ValidationError as error:
            raise _named(str(error)) from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise invalid("", f"the body is no valid JSON: {error}") from error
        except RecursionError as error:
            raise invalid("", "the body is nested too deeply") from error
        if too_large is not None:
            raise invalid(too_large, TOO_LARGE)
        return read

    def _look_at(self, name: str, raw: msgspec.Raw) -> None:
        """Refuse what would change the answer and isn't served; warn of what nobody knows."""
        if name in REFUSED:
            if is_refused(name, msgspec.json.decode(raw)):
                raise invalid(name, "is not supported; leave it out")
        elif (
            name not in IGNORED and name not in self._warned and len(self._warned) < _MAX_NUM_WARNED
        ):
            self._warned.add(name)
            log.warning("unknown_field_ignored", field=name[:_MAX_NAME_CHARACTERS])


def _named(text: str) -> Exception:
    """Return the error of a wrong value, by the path in msgspec's message."""
    what, _, where = text.rpartition(_WHERE_AT)
    if not what:
        missing = text.removeprefix(_MISSING).partition("`")[0] if _MISSING in text else ""
        return invalid(missing, "is missing") if missing else invalid("", text)
    path = where.removeprefix("`key` in ").strip("`").removeprefix("$").removeprefix(".")
    return invalid(path, what)
