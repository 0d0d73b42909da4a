import random

import pytest

from kvdefrag.perf.prefix_cache import PrefixCache


class SlowCache:
    """Prefixes as tuples in a dict; every question is answered by looking at all of them."""

    def __init__(self):
        self.states, self.locks, self.used, self.tick = {}, {}, {}, 0

    def match(self, hashes):
        return max(n for n in range(len(hashes) + 1) if n == 0 or hashes[:n] in self.used)

    def add(self, prefix):
        self.used[prefix], self.states[prefix], self.locks[prefix] = 0, False, 0

    def touch(self, prefix):
        self.tick += 1
        for end in range(1, len(prefix) + 1):
            self.used[prefix[:end]] = self.tick

    def lock(self, prefix, change):
        if prefix:
            self.locks[prefix] += change
        if change < 0:
            self.touch(prefix)

    def has_children(self, prefix):
        return any(other[:-1] == prefix for other in self.used)

    def is_locked(self, prefix):
        return any(n and other[: len(prefix)] == prefix for other, n in self.locks.items())

    def evict(self):
        free = [p for p in self.used if not self.has_children(p) and not self.is_locked(p)]
        if not free:
            return []
        gone = [min(free, key=self.used.__getitem__)]
        self.remove(gone[0])
        while (parent := gone[-1][:-1]) and not (
            self.states[parent] or self.has_children(parent) or self.is_locked(parent)
        ):
            gone.append(parent)
            self.remove(parent)
        return gone

    def remove(self, prefix):
        for table in (self.used, self.states, self.locks):
            del table[prefix]


def prefix_of(node):
    hashes = []
    while node.parent is not None:
        hashes.append(node.block_hash)
        node = node.parent
    return tuple(reversed(hashes))


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_a_slow_model(seed):
    draw = random.Random(seed)
    rows = 60
    cache, model, running = PrefixCache(rows), SlowCache(), []
    for step in range(600):
        action = draw.random()
        if action < 0.5 and len(model.used) <= rows - 8:
            hashes = tuple(draw.randrange(3) for _ in range(draw.randrange(8)))
            path = cache.match(hashes)
            assert len(path) == model.match(hashes)
            end = path[-1] if path else cache.root
            cache.lock(end)
            model.lock(hashes[: len(path)], 1)
            chain = cache.extend(end, hashes[len(path) :])
            for length in range(len(path) + 1, len(hashes) + 1):
                model.add(hashes[:length])
            last = chain[-1] if chain else end
            cache.lock(last)
            model.lock(hashes, 1)
            cache.unlock(end)
            model.lock(hashes[: len(path)], -1)
            for node in {end, last}:
                if node.depth and draw.random() < 0.6:
                    node.checkpoint = node.checkpoint or step + 1
                    model.states[prefix_of(node)] = True
            running.append((last, hashes))
        elif action < 0.75 and running:
            last, hashes = running.pop(draw.randrange(len(running)))
            cache.unlock(last)
            model.lock(hashes, -1)
        else:
            expected = model.evict()
            alive = {node: prefix_of(node) for node in cache.nodes()}
            assert [alive[node] for node in cache.evict()] == expected
        nodes = cache.nodes()
        assert {prefix_of(node) for node in nodes} == set(model.used)
        assert len({node.row for node in nodes}) == len(nodes)
        assert all(0 <= node.row < rows for node in nodes)


def build(cache, *prompts):
    ends = []
    for hashes in prompts:
        path = cache.match(hashes)
        chain = cache.extend(path[-1] if path else cache.root, hashes[len(path) :])
        ends.append(chain[-1])
        cache.lock(ends[-1])
    return ends


def evicted(cache):
    return [node.block_hash for node in cache.evict()]


def test_least_recently_used_leaf_goes_first_and_a_touch_saves_it():
    cache = PrefixCache(10)
    old, young = build(cache, [1], [2])
    cache.unlock(old)
    cache.unlock(young)
    cache.lock(old)
    cache.unlock(old)
    assert evicted(cache) == [2]
    assert evicted(cache) == [1]
    assert evicted(cache) == []


def test_a_leaf_takes_ancestors_without_state_or_children_along():
    cache = PrefixCache(10)
    (end,) = build(cache, [1, 2, 3, 4, 5])
    cache.match([1, 2])[-1].checkpoint = 7
    cache.unlock(end)
    assert evicted(cache) == [5, 4, 3]
    assert evicted(cache) == [2, 1]


def test_the_cascade_stops_at_a_branch():
    cache = PrefixCache(10)
    left, right = build(cache, [1, 2, 3], [1, 2, 4, 5])
    cache.unlock(left)
    assert evicted(cache) == [3]
    assert evicted(cache) == []
    cache.unlock(right)
    assert evicted(cache) == [5, 4, 2, 1]


def test_a_locked_end_keeps_its_whole_path_and_stops_the_cascade():
    cache = PrefixCache(10)
    short, long = build(cache, [1, 2], [1, 2, 3, 4])
    cache.unlock(long)
    assert evicted(cache) == [4, 3]
    assert evicted(cache) == []
    cache.unlock(short)
    assert evicted(cache) == [2, 1]


def test_rows_come_back():
    cache = PrefixCache(3)
    for _ in range(4):
        (end,) = build(cache, [1, 2, 3])
        assert sorted(node.row for node in cache.nodes()) == [0, 1, 2]
        cache.unlock(end)
        assert len(cache.evict()) == 3
