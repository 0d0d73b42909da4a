"""A trace whose mix of short and long sessions changes over time."""

from collections.abc import Sequence

from .trace import Request


def drift(requests: Sequence[Request], window: int) -> list[Request]:
    """Reorder every window of `window` requests: its short sessions apart from its long ones.

    Windows begin with the short and with the long sessions by turns, so that about `window`
    requests of one kind follow each other. Requests of one session, that is with the same second
    block, keep their order. The requests are the same, and so is what every window can share.
    """
    drifted: list[Request] = []
    for number, first in enumerate(range(0, len(requests), window)):
        part = requests[first : first + window]
        longest: dict[int, int] = {}
        for request in part:
            session = _session(request)
            longest[session] = max(longest.get(session, 0), request.input_tokens)
        lengths = sorted(longest[_session(request)] for request in part)
        median = lengths[len(lengths) // 2]
        is_long = [longest[_session(request)] >= median for request in part]
        for kind in (False, True) if number % 2 == 0 else (True, False):
            drifted += [r for r, long in zip(part, is_long, strict=True) if long == kind]
    return drifted


def _session(request: Request) -> int:
    """The first block is a system prompt, which many sessions share."""
    hashes = request.block_hashes
    return hashes[1] if len(hashes) > 1 else hashes[0]
