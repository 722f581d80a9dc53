"""Whose cached prefixes a request may find."""

from slipstream.shared.messages.generate import GenerateRequest


def salt_of(request: GenerateRequest, *, is_isolating: bool) -> str:
    """
    Return the salt under which the request's blocks are cached: its own, apart for each tenant.

    Who shares a cache with others can tell by the time to the first token what they asked. No two
    pairs of a tenant and a salt have one salt in common: the tenant's length stands in front.
    """
    tenant = (request.tenant or "") if is_isolating else ""
    salt = request.cache_salt or ""
    return f"{len(tenant)}:{tenant}{salt}" if tenant or salt else ""
