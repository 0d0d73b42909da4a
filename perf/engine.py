"""The engine's policy: admission, decoding, eviction and preemption."""

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .geometries import PoolLayout
from .page_store import FULL, STATE, WINDOW, PageStore
from .prefix_cache import Node, PrefixCache
from .running_batch import Job, RunningBatch
from .trace import BLOCK_TOKENS, Request


@dataclass
class Counters:
    """What happened to requests and tokens.

    `prompt_tokens` and `hit_tokens` are those of first admissions; `decode_steps` counts steps of
    the whole batch. `waited` counts requests whose first admission found too few pages. An evicted
    chain is a leaf and the ancestors that went with it.
    """

    finished: int = 0
    refused: int = 0
    preemptions: int = 0
    waited: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    generated_tokens: int = 0
    decode_steps: int = 0
    evicted_chains: int = 0
    evicted_pages: dict[str, int] = field(default_factory=dict)


class _Plan(NamedTuple):
    """How a job would be admitted.

    `path` is in the cache already, the first `hit_blocks` of it need no computing; `new_hashes`
    follow it. Private pages from `window_first` on are in the window.
    """

    path: list[Node]
    hit_blocks: int
    new_hashes: Sequence[int]
    page_counts: dict[str, int]
    private_pages: int
    window_first: int


class Engine:
    """Runs requests in order, at most `running` at a time, over the pages of a store.

    `on_done` is called once for each request that finished or was refused.
    """

    def __init__(
        self,
        store: PageStore,
        layout: PoolLayout,
        requests: Sequence[Request],
        running: int,
        on_done: Callable[[], None],
    ) -> None:
        self.cache = PrefixCache(store.rows)
        self.counters = Counters(evicted_pages=dict.fromkeys(store.pool_names, 0))
        self._store = store
        self._checkpoint_pages = store.checkpoint_pages
        self._layout = layout
        self._queue = deque(Job(request) for request in requests)
        self._batch = RunningBatch(running, layout.page_size, layout.window_tokens)
        self._on_done = on_done
        self._serials = itertools.count(1)
        self._waiting = False

    def run(self) -> None:
        """Run until every request has finished or been refused."""
        while self._queue or self._batch.count:
            self._admit_waiting()
            if self._batch.count:
                self._decode()

    def _admit_waiting(self) -> None:
        """Admit from the head of the queue; after a refusal, wait for a request to finish."""
        while self._queue and not self._batch.full and not self._waiting:
            job = self._queue.popleft()
            if self._admit(job):
                continue
            if self._batch.count:
                if not (job.admitted or job.waited):
                    job.waited = True
                    self.counters.waited += 1
                self._queue.appendleft(job)
                self._waiting = True
            else:
                self._refuse()

    def _admit(self, job: Job) -> bool:
        """Start a job, evicting what it takes; False, with nothing bound, if that is not enough."""
        plan = self._plan(job)
        end = plan.path[-1] if plan.path else self.cache.root
        self.cache.lock(end)
        if not self._make_room(plan.page_counts):
            self.cache.unlock(end)
            return False
        virtual_ids = self._store.alloc_many(plan.page_counts)
        self._count_admission(job, plan)
        reached = plan.path[plan.hit_blocks - 1 : plan.hit_blocks] if plan.hit_blocks else []
        self._store.compare(plan.path, reached, "prefix hit")
        chain = self.cache.extend(end, plan.new_hashes)
        last = chain[-1] if chain else end
        self.cache.lock(last)
        self.cache.unlock(end)
        serial = next(self._serials)
        slot = self._batch.add(job, last, serial, plan.private_pages, plan.window_first)
        self._store.write_pages(chain, slot, serial, virtual_ids[FULL])
        checkpoints = self._new_checkpoints(end, last)
        if STATE in virtual_ids:
            self._store.write_states(checkpoints, slot, serial, virtual_ids[STATE])
        self._store.write_window(checkpoints, slot, serial, plan.window_first, plan.private_pages)
        return True

    def _plan(self, job: Job) -> _Plan:
        hashes = job.request.block_hashes[: job.request.full_blocks]
        path = self.cache.match(hashes)
        new_hashes = hashes[len(path) :]
        private_pages = -(-job.private_tokens // self._layout.page_size)
        window_first = self._layout.window_first(job.private_tokens)
        page_counts = {FULL: len(new_hashes) * self._layout.block_pages + private_pages}
        hit_blocks = len(path)
        if self._checkpoint_pages:
            branch = bool(path) and not path[-1].checkpoint
            for pool, pages in self._checkpoint_pages.items():
                page_counts[pool] = (branch + bool(new_hashes)) * pages
            while hit_blocks and not path[hit_blocks - 1].checkpoint:
                hit_blocks -= 1
        if STATE in page_counts:
            page_counts[STATE] += 1
        if WINDOW in page_counts:
            page_counts[WINDOW] += private_pages - window_first
        return _Plan(path, hit_blocks, new_hashes, page_counts, private_pages, window_first)

    def _new_checkpoints(self, branch: Node, last: Node) -> list[Node]:
        """Mark the branch point and the last full block as checkpoints, where they are none."""
        if not self._checkpoint_pages:
            return []
        wanted = (branch, last) if branch is not last else (last,)
        nodes = [node for node in wanted if node.depth and not node.checkpoint]
        for node in nodes:
            node.checkpoint = next(self._serials)
        return nodes

    def _count_admission(self, job: Job, plan: _Plan) -> None:
        if not job.admitted:
            job.admitted = True
            input_tokens = job.request.input_tokens
            self.counters.prompt_tokens += input_tokens
            # The last token is always computed: its logits start the answer.
            self.counters.hit_tokens += min(plan.hit_blocks * BLOCK_TOKENS, input_tokens - 1)

    def _decode(self) -> None:
        """Generate until a request needs a page or ends; serve those that do."""
        batch = self._batch
        self.counters.decode_steps += batch.advance()
        self._grow()
        for slot in batch.ended():
            job = self._release(slot)
            self._waiting = False
            self.counters.finished += 1
            self.counters.generated_tokens += job.generated
            self._on_done()

    def _grow(self) -> None:
        """Give a page to every request that needs one, taking it from others if need be."""
        slots = self._batch.short_of_a_page()
        if slots.size and self._store.window is not None:
            self._store.leave_window(slots, self._batch.leave_window(slots))
        while slots.size:
            positions, keys = self._batch.growth(slots)
            if self._store.grow(slots, positions, keys):
                self._batch.add_pages(slots)
                return
            if not self._evict():
                self._preempt_youngest()
                slots = self._batch.short_of_a_page()

    def _make_room(self, page_counts: Mapping[str, int]) -> bool:
        """Evict leaves until the arena would grant `page_counts`; False if it never does."""
        while not self._store.fits(page_counts):
            if not self._evict():
                return False
        return True

    def _evict(self) -> bool:
        """Free the pages of the least recently used leaf and what goes with it; False if none."""
        chain = self.cache.evict()
        if not chain:
            return False
        self._store.evict(chain)
        self.counters.evicted_chains += 1
        self.counters.evicted_pages[FULL] += len(chain) * self._layout.block_pages
        if chain[0].checkpoint:
            for pool, pages in self._checkpoint_pages.items():
                self.counters.evicted_pages[pool] += pages
        return True

    def _preempt_youngest(self) -> None:
        """Put the youngest request back; one that cannot even grow alone is refused."""
        job = self._release(self._batch.youngest())
        if self._batch.count:
            self._queue.appendleft(job)
            self.counters.preemptions += 1
        else:
            # Nobody is left whose end those that wait could wait for.
            self._waiting = False
            self._refuse()

    def _release(self, slot: int) -> Job:
        held = self._batch.remove(slot)
        self._store.release(slot, held.serial, held.page_count, held.window_first)
        self.cache.unlock(held.end)
        return held.job

    def _refuse(self) -> None:
        self.counters.refused += 1
        self._on_done()
