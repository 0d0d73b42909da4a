"""What the bytes of a page envelope are, element by element."""

import numpy as np
import torch

from kvdefrag import EnvelopeLayout, MultiEndedAllocator

UNUSED = 0xC3


def bytes_of_part(layout: EnvelopeLayout, name: str, layer: int) -> list[int]:
    """Every byte of the envelope that belongs to a part."""
    part = layout.part(name, layer)
    axes = zip(part.shape, part.strides, strict=True)
    steps = np.meshgrid(*(np.arange(n) * step for n, step in axes), indexing="ij")
    first = part.offset + sum(steps).flatten()
    return (first[:, None] + np.arange(part.dtype.itemsize)).flatten().tolist()


def random_values(layout: EnvelopeLayout, name: str, layer: int, rows: int, seed: int):
    """Values of a part for ``rows`` pages, of any bit pattern: [rows, *shape]."""
    part = layout.part(name, layer)
    rng = np.random.default_rng([seed, part.offset])
    count = int(np.prod(part.shape)) * part.dtype.itemsize
    raw = rng.integers(0, 256, (rows, count), dtype=np.uint8)
    return torch.from_numpy(raw).view(part.dtype).view(rows, *part.shape)


class Envelopes:
    """Pages of a pool that were written through its views, and what their bytes must be."""

    def __init__(
        self, pool: MultiEndedAllocator, layout: EnvelopeLayout, names: list[str], page_count: int
    ) -> None:
        self.pool, self.layout, self.names = pool, layout, names
        self.views = pool.views(layout, names)
        self.ids = pool.alloc(page_count)
        self.image = np.full((page_count, layout.page_bytes), UNUSED, np.uint8)
        self.values = {
            (name, layer): random_values(layout, name, layer, page_count, pool.index)
            for layer in layout.layers
            for name in names
        }
        for (name, layer), values in self.values.items():
            raw = values.contiguous().view(torch.uint8).numpy().reshape(page_count, -1)
            self.image[:, bytes_of_part(layout, name, layer)] = raw
        pool.pages[pool.translate(self.ids)] = UNUSED
        for row, page in enumerate(self.places()):
            for (name, layer), values in self.values.items():
                self.views[layer][name][page] = values[row]

    def places(self) -> list[int]:
        return self.pool.translate(self.ids).tolist()

    def free(self, rows: list[int]) -> None:
        """Give back some of the pages."""
        self.pool.free(self.ids[rows])
        kept = [row for row in range(len(self.ids)) if row not in rows]
        self.ids, self.image = self.ids[kept], self.image[kept]
        self.values = {key: values[kept] for key, values in self.values.items()}

    def wrong(self) -> list[str]:
        """The pages whose bytes or views are not what was written."""
        found = []
        for row, page in enumerate(self.places()):
            if not np.array_equal(self.pool.pages[page].numpy(), self.image[row]):
                found.append(f"bytes of page {page}")
            for (name, layer), values in self.values.items():
                read = self.views[layer][name][page].contiguous().view(torch.uint8)
                if not torch.equal(read, values[row].contiguous().view(torch.uint8)):
                    found.append(f"{name} of layer {layer} in page {page}")
        return found
