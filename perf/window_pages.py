"""The pool of a sliding window: a second page for the ids whose tokens are near enough."""

import torch

from .arena_face import SharingPoolFace
from .content_keys import Keys, window_keys
from .page_stamps import PageStamps
from .timed_arena import TimedArena


class WindowPages:
    """Pages that ids of the pool `owner` have in the pool `window`, stamped with their own content.

    `held` and `peak` count them, now and at most. Keys are those of the same ids in `owner`.
    """

    def __init__(
        self,
        timed: TimedArena,
        owner: SharingPoolFace,
        window: SharingPoolFace,
        stamps: PageStamps,
    ) -> None:
        self.held = 0
        self.peak = 0
        self._timed = timed
        self._owner = owner
        self._window = window
        self._stamps = stamps

    def bind(self, virtual_ids: torch.Tensor) -> None:
        """Give each of `virtual_ids`, int64 `[n]`, a page; they are known to fit."""
        if virtual_ids.shape[0]:
            self._timed.bind(self._window, virtual_ids)
            self.held += virtual_ids.shape[0]
            self.peak = max(self.peak, self.held)

    def write(self, virtual_ids: torch.Tensor, keys: Keys) -> None:
        """Stamp the pages of `virtual_ids`."""
        self._stamps.write(virtual_ids, window_keys(keys))

    def compare(self, virtual_ids: torch.Tensor, keys: Keys, moment: str) -> None:
        """Compare the pages of `virtual_ids` with their content."""
        self._stamps.compare(virtual_ids, window_keys(keys), moment)

    def release(self, virtual_ids: torch.Tensor, page_count: int) -> None:
        """Take `page_count` pages back, those that the ids have here: the list may have gaps."""
        if page_count:
            self._timed.release(self._window, virtual_ids, page_count)
            self.held -= page_count

    def free(self, virtual_ids: torch.Tensor, page_count: int) -> None:
        """Free ids in the pool that owns them; `page_count` of them have a page here."""
        self._timed.free_lent(self._owner, virtual_ids, {self._window.name: page_count})
        self.held -= page_count
