"""Tables of virtual ids that the replayed engine keeps on the arena's device."""

import numpy as np
import torch

from .content_keys import Integers


class IdTable:
    """int64 ids, `[rows, width]`, on one device.

    The host knows every row number, so the table is never read back. On the CPU the rows go through
    numpy, whose calls on a few ids cost a fraction of torch's.
    """

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self._width = width
        self._ids = torch.zeros((rows, width), dtype=torch.int64, device=device)
        self._host: Integers | None = self._ids.numpy() if device.type == "cpu" else None

    def put(self, rows: list[int], ids: torch.Tensor) -> None:
        """Write whole `rows`: `ids` are `[len(rows) * width]`."""
        if self._host is not None:
            self._host[rows] = ids.numpy().reshape(-1, self._width)
        else:
            self._ids.index_copy_(0, self._on_device(np.array(rows)), ids.view(-1, self._width))

    def take(self, rows: list[int]) -> torch.Tensor:
        """Read whole `rows`: ids `[len(rows) * width]`."""
        if self._host is not None:
            return torch.from_numpy(self._host[rows].reshape(-1))
        return self._ids.index_select(0, self._on_device(np.array(rows))).view(-1)

    def put_cells(self, rows: Integers, columns: Integers, ids: torch.Tensor) -> None:
        """Write one id to each of the cells `(rows[i], columns[i])`; all are `[n]`."""
        if self._host is not None:
            self._host[rows, columns] = ids.numpy()
        else:
            cells = self._on_device(rows * self._width + columns)
            self._ids.view(-1).index_copy_(0, cells, ids)

    def take_cells(self, rows: Integers, columns: Integers) -> torch.Tensor:
        """Read one id from each of the cells `(rows[i], columns[i])`; all are `[n]`."""
        if self._host is not None:
            return torch.from_numpy(self._host[rows, columns])
        return self._ids.view(-1).index_select(0, self._on_device(rows * self._width + columns))

    def put_first(self, row: int, ids: torch.Tensor) -> None:
        """Write the first `ids.numel()` columns of a row."""
        self._ids[row, : ids.shape[0]] = ids

    def first(self, row: int, count: int) -> torch.Tensor:
        """The first `count` columns of a row, a view."""
        return self._ids[row, :count]

    def between(self, row: int, first: int, end: int) -> torch.Tensor:
        """The columns from `first` to before `end` of a row, a view."""
        return self._ids[row, first:end]

    def _on_device(self, values: Integers) -> torch.Tensor:
        return torch.from_numpy(values).to(self._ids.device)
