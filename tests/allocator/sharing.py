"""An arena whose pools share virtual ids."""

from typing import Any

from kvdefrag import Arena, PoolSpec


def sharing(backend: str, debug: bool = False, page_size: int = 4, **window: Any) -> Arena:
    """Pool "full" and two that borrow from it: "window", which floats, and "linear" at the end."""
    specs = [
        PoolSpec("full", 32, page_size),
        PoolSpec("window", 48, page_size, grows="float", ids_from="full", **window),
        PoolSpec("linear", 16, page_size, grows="down", ids_from="full"),
    ]
    return Arena(4096, specs, "cpu", backend, debug)


def bound(arena: Arena, name: str) -> list[int]:
    rows = arena[name].virtual_to_physical.tolist()
    return [virtual for virtual, page in enumerate(rows) if page > 0]


def cost(arena: Arena, call: Any) -> tuple[int, int, int]:
    """Launches, device-to-host and host-to-device copies of ``call``."""
    before = arena.stats()
    call()
    after = arena.stats()
    return (
        after.launches - before.launches,
        after.device_to_host_copies - before.device_to_host_copies,
        after.host_to_device_copies - before.host_to_device_copies,
    )
