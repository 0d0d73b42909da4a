"""Transfer buffers between host and device."""

from __future__ import annotations

from typing import Any

import torch

from .launch import Words


class Staging:
    """A host buffer (pinned where there is a GPU) and its twin on the device.

    ``host``: int64 numpy [words]. ``device``: int64 operand [words]; the same memory on the host
    backend. The host side may be written again once a later ``read_back`` has returned, since that
    waits for everything before it on the stream.
    """

    __slots__ = ("device", "host", "pinned")

    def __init__(self, word_count: int, device: torch.device | None) -> None:
        pinned = device is not None and device.type == "cuda"
        self.pinned = torch.empty(word_count, dtype=torch.int64, device="cpu", pin_memory=pinned)
        self.host: Words = self.pinned.numpy()
        self.device: Any = self.host
        if device is not None:
            self.device = torch.empty(word_count, dtype=torch.int64, device=device)
