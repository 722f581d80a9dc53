"""Numbers of a schema that the grammar library can't bear are refused before it sees them."""

import pytest

from slipstream.shared.errors import ConstraintError
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.grammar import check

_LEAST = -(2**63)


@pytest.mark.parametrize(
    "schema",
    [
        f'{{"const": {_LEAST}}}',
        f'{{"const": {_LEAST + 1}}}',
        f'{{"enum": ["a", {_LEAST + 2}]}}',
        f'{{"const": [[{_LEAST + 1}]]}}',
        f'{{"oneOf": [{{"type": "string", "format": "date-time"}}, {{"const": {_LEAST}}}]}}',
    ],
)
def test_a_number_near_the_least_of_64_bits_is_refused(schema: str) -> None:
    """Where it isn't, this process ends: the library calls itself without end."""
    with pytest.raises(ConstraintError, match="is below -4611686018427387904"):
        check.__wrapped__(Constraint("json", schema))


@pytest.mark.parametrize("number", [-(2**62), -1, 0, 2**63 - 1])
def test_others_are_taken(number: int) -> None:
    check.__wrapped__(Constraint("json", f'{{"const": {number}}}'))


@pytest.mark.parametrize("step", ["2147483648", "10.001", "1" + "0" * 400])
def test_steps_with_too_many_remainders_are_refused(step: str) -> None:
    with pytest.raises(ConstraintError, match="too many states"):
        check.__wrapped__(Constraint("json", f'{{"type": "number", "multipleOf": {step}}}'))


@pytest.mark.parametrize("step", ["NaN", "Infinity", "-Infinity"])
def test_steps_that_are_no_numbers_are_refused(step: str) -> None:
    with pytest.raises(ConstraintError, match="finite"):
        check.__wrapped__(Constraint("json", f'{{"multipleOf": {step}}}'))


def test_steps_that_meet_are_refused_by_their_product() -> None:
    both = '{"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}'
    with pytest.raises(ConstraintError, match="too many states"):
        check.__wrapped__(Constraint("json", both))

    check.__wrapped__(Constraint("json", '{"type": "integer", "multipleOf": 997}'))
