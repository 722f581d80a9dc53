"""
Constraints as grammars of llguidance, within limits on what they may cost.

Loads the library, 8 MB and 50 ms that most processes never need: import it with a constraint.
"""

import json
import math
import re
from decimal import Decimal
from functools import cache, lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from slipstream.shared.errors import ConstraintError
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.constraint import OPTIONS_KEY

# A state takes 1 to 2 kB in each sequence that meets it.
_MAX_NUM_LEXER_STATES = 20_000
# Symbols of productions: 1,000 optional properties have 9,000, and take 0.2 s to compile. The time
# grows with their square.
_MAX_GRAMMAR_SIZE = 10_000
# By the library's figures 20 ms to compile, and 15 ms for the costliest mask.
_COMPILE_FUEL = 1_000_000
_STEP_FUEL = 200_000
_MAX_STEP_ITEMS = 50_000
_MAX_NUM_REMAINDERS = 10_000
_LEAST_NUMBER = -(2**62)

# Tokens are bytes to us: forcing would only allow one way to write what must follow, and ask for a
# tokenizer that workers don't load.
_OPTIONS = '%llguidance {"no_forcing": true}\n'

# One blank or one indented line: a small model that may add blanks for ever does.
_WHITESPACE = " |\\n {0,20}"

_MAX_MESSAGE_CHARACTERS = 140
_PLACE = re.compile(r"^at \d+\(\d+\): |^failed to compile JSON schema: ")


def open_matcher(tokenizer: LLTokenizer, constraint: Constraint) -> LLMatcher:
    """Compile a constraint over a vocabulary. Raises ConstraintError."""
    grammar = LLMatcher.grammar_from_lark(_OPTIONS + _start_rule(constraint))
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())
    raise_error_of(matcher)
    return matcher


# Clients repeat their schemas; what was refused is compiled again.
@lru_cache(maxsize=64)
def check(constraint: Constraint) -> None:
    """Compile a constraint over bytes, which need no model. Raises ConstraintError."""
    matcher = open_matcher(_byte_tokenizer(), constraint)
    matcher.compute_bitmask()
    raise_error_of(matcher)


def raise_error_of(matcher: LLMatcher) -> None:
    """Raise ConstraintError if a matcher has failed; it never works again."""
    if matcher.is_error():
        raise ConstraintError(_shortened(matcher.get_error()))


def _start_rule(constraint: Constraint) -> str:
    if constraint.kind == "regex":
        return f"start: /{regex_to_lark(constraint.text)}/"
    _check_numbers(json.loads(constraint.text))
    # Put in as text: what a schema says depends on the order of its keys.
    content = constraint.text[1:-1]
    options = json.dumps({"whitespace_pattern": _WHITESPACE})
    return f'start: %json {{"{OPTIONS_KEY}": {options}{"," if content else ""}{content}}}'


def _check_numbers(schema: object) -> None:
    """
    Refuse numbers that the library can't bear. Raises ConstraintError.

    Each remainder of `multipleOf` is a state, made before any limit counts; several may have to
    hold at once, with as many states as their product. And a value near the least of 64 bits has
    the library (1.9) call itself until the stack ends, and the process with it.
    """
    waiting, product = [schema], Decimal(1)
    while waiting:
        found = waiting.pop()
        if isinstance(found, int) and found < _LEAST_NUMBER:
            raise ConstraintError(f"the number {found} is below {_LEAST_NUMBER}")
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict):
            waiting += found.values()
            step = found.get("multipleOf")
            if isinstance(step, int | float) and not isinstance(step, bool):
                product *= max(Decimal(1), _num_remainders(step))
            if product > _MAX_NUM_REMAINDERS:
                raise ConstraintError(f"multipleOf {str(step)[:24]} takes too many states")


def _num_remainders(step: float) -> Decimal:
    if isinstance(step, int):
        return Decimal(min(abs(step), _MAX_NUM_REMAINDERS + 1))
    if not math.isfinite(step):
        raise ConstraintError("multipleOf must be a finite number")
    number = abs(Decimal(str(step)))
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and exponent < 0:
        return number.scaleb(-exponent)
    return number


@cache
def _limits() -> LLParserLimits:
    return LLParserLimits(
        initial_lexer_fuel=_COMPILE_FUEL,
        step_lexer_fuel=_STEP_FUEL,
        step_max_items=_MAX_STEP_ITEMS,
        max_lexer_states=_MAX_NUM_LEXER_STATES,
        max_grammar_size=_MAX_GRAMMAR_SIZE,
        verbose_errors=False,
    )


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def _shortened(message: str) -> str:
    """Return the one sentence of the library's message that says what is wrong."""
    lines = message.strip().splitlines()
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    said = (told or lines)[0]
    while (shorter := _PLACE.sub("", said)) != said:
        said = shorter
    if said.startswith("NoExtension"):
        said = "no answer can match it"
    said = said.partition(". Enable ")[0]
    if len(said) > _MAX_MESSAGE_CHARACTERS:
        said = said[: _MAX_MESSAGE_CHARACTERS - 3] + "..."
    return said
