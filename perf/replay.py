"""A small model of a serving engine that drives the allocator through a trace.

Requests are admitted in trace order, a bounded number at a time. A prompt's full blocks live in the
prefix cache and are shared; the partial last block and the answer are private. Models with
recurrent state keep one checkpoint at a prompt's last full block and one where it branched off; a
prefix then counts as a hit only up to its deepest checkpoint, and the blocks beyond are computed
again into the pages that they have. The same holds for models with a sliding window, whose
checkpoints are pages of the last tokens in the window's pool; besides them that pool holds only
what the windows of running requests reach. When pages run short, cached leaves are evicted; when
growth still does not fit, the youngest request is preempted, queued first again, and its answer so
far becomes part of its private pages.

Every page is stamped when it is written, and compared when a prefix hits, before it is freed and at
the end.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from kvdefrag import AllocatorError, Arena, PoolSpec
from kvdefrag.kernels.backend import choose_backend

from .arena_face import ArenaFace, StatsFace
from .engine import Counters, Engine
from .geometries import PoolLayout
from .page_stamps import Verdict
from .page_store import FULL, STATE, WINDOW, PageStore
from .replay_watch import Watch
from .timed_arena import TimedArena
from .trace import BLOCK_TOKENS, Request


@dataclass(frozen=True)
class ReplayOptions:
    """How to run a replay.

    At most `running` requests run at a time; `verify` is `"full"`, `"sample"` or `"off"`; `seed`
    chooses the sample. `backend` and `device` are the arena's.
    """

    running: int = 64
    seed: int = 0
    backend: str = "auto"
    device: str = "cpu"
    verify: str = "full"


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found; `faults` are inconsistencies that the arena or the counts show.

    `read_backs` are the device-to-host copies that serving took, those of the checks left out;
    `peak_window_pages` are the most pages that the window's pool held, 0 where there is none.
    """

    counters: Counters
    stats: StatsFace
    read_backs: int
    times: TimedArena
    verdict: Verdict
    faults: tuple[str, ...]
    backend: str
    device: str
    elapsed_s: float
    peak_window_pages: int

    @property
    def passed(self) -> bool:
        """Whether every compared page was right and nothing was inconsistent."""
        return not self.verdict.wrong_pages and not self.faults


def make_specs(layout: PoolLayout) -> list[PoolSpec]:
    """The pools of a replay: token pages from the start of the buffer, states from its end.

    The window floats between them, or takes the end where there are no states.
    """
    specs = [PoolSpec(FULL, layout.page_bytes, page_size=layout.page_size, grows="up")]
    if layout.window_page_bytes:
        specs.append(
            PoolSpec(
                WINDOW,
                layout.window_page_bytes,
                page_size=layout.page_size,
                grows="float" if layout.state_bytes else "down",
                ids_from=FULL,
            )
        )
    if layout.state_bytes:
        specs.append(PoolSpec(STATE, layout.state_bytes, page_size=1, grows="down"))
    return specs


def make_buffer(layout: PoolLayout, device: str) -> torch.Tensor:
    """Zeroed bytes, uint8 `[total_bytes]`."""
    if device == "cpu":
        # numpy asks the system for huge pages, torch does not: a tenth of a replay's time.
        return torch.from_numpy(np.zeros(layout.total_bytes, dtype=np.uint8))
    return torch.zeros(layout.total_bytes, dtype=torch.uint8, device=device)


def make_arena(layout: PoolLayout, options: ReplayOptions) -> Arena:
    """Make the arena of a replay; `AllocatorError` where it refuses layout, device or backend."""
    return Arena(
        layout.total_bytes,
        make_specs(layout),
        device=options.device,
        backend=options.backend,
        buffer=make_buffer(layout, options.device),
    )


def replay_trace(
    arena: ArenaFace,
    layout: PoolLayout,
    requests: Sequence[Request],
    options: ReplayOptions,
    on_done: Callable[[], None] = lambda: None,
    watch: Watch | None = None,
) -> ReplayResult:
    """Replay `requests` on an empty arena made for `layout`; `on_done` runs once a request.

    `watch` looks on, outside the times. Raises `AllocatorError` where the arena finds itself
    inconsistent on the way.
    """
    arena.prewarm()
    answer_tokens = max(request.output_tokens for request in requests)
    store = PageStore(
        arena,
        layout,
        running=options.running,
        private_pages=-(-(BLOCK_TOKENS - 1 + answer_tokens) // layout.page_size),
        verify=options.verify,
        seed=options.seed,
    )
    engine = Engine(store, layout, requests, options.running, on_done)
    if watch is not None:
        watch.attach(store.timed)
    copies_before = arena.stats().device_to_host_copies
    start = perf_counter()
    with torch.inference_mode(), _one_thread():
        engine.run()
        read_backs = arena.stats().device_to_host_copies - copies_before
        faults = _final_checks(arena, engine, store, layout)
    return ReplayResult(
        counters=engine.counters,
        stats=arena.stats(),
        read_backs=read_backs,
        times=store.timed,
        verdict=store.verdict,
        faults=faults,
        backend=choose_backend(options.backend, arena.device).name,
        device=str(arena.device),
        elapsed_s=perf_counter() - start,
        peak_window_pages=store.window.peak if store.window is not None else 0,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch operators on one thread: for small ones, waking another costs more than it saves.

    On a machine that has other work, waiting for that thread makes a replay several times slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _final_checks(
    arena: ArenaFace, engine: Engine, store: PageStore, layout: PoolLayout
) -> tuple[str, ...]:
    """Compare all pages that are still held, count them, and let the arena check itself."""
    nodes = engine.cache.nodes()
    holders = [node for node in nodes if node.checkpoint]
    store.compare(nodes, holders, "at the end")
    faults = []
    held_pages = {FULL: len(nodes) * layout.block_pages}
    for pool, pages in store.checkpoint_pages.items():
        held_pages[pool] = len(holders) * pages
    for pool, pool_stats in arena.stats().pools.items():
        if pool_stats.live_pages != held_pages[pool]:
            faults.append(
                f"pool {pool} has {pool_stats.live_pages} live pages, "
                f"the cache holds {held_pages[pool]}"
            )
    try:
        arena.check(deep=True)
    except AllocatorError as error:
        faults.append(f"{type(error).__name__}: {error}")
    return tuple(faults)
