"""Where the operations run: Triton on device tensors, or their host twins on CPU tensors.

A backend is chosen once, by the arena. Both count what they do: ``launches`` (a Triton launch, a
torch operator, or a call of a host twin), ``device_to_host_copies`` and ``host_to_device_copies``
(a transfer, or on the host a staging step), so that their counters agree call for call.

Tables and lists reach the operations as *operands*, made once by ``operand``: the tensor itself
for Triton, its cached numpy view for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from triton.runtime.interpreter import InterpretedFunction

from .bind import bind, bind_host, unbind, unbind_host
from .borrow import bind_borrowed, bind_borrowed_host
from .copy import MAX_UNITS, Rebinding, copy_form, copy_pages, copy_pages_host
from .counting import counted, giving_tensor, uploading
from .gather import gather_virtual, gather_virtual_host
from .launch import Words
from .rebind import _rebind_kernel, rebind, rebind_host
from .staging import Staging
from .token_extend import extend, extend_host
from .token_free import unbind_tokens, unbind_tokens_host
from .token_group import unbind_group, unbind_group_host
from .token_grow import bind_tokens, bind_tokens_host, decode, decode_host
from .token_run import unbind_run, unbind_run_host
from .translate import translate, translate_host, translate_tokens, translate_tokens_host
from .zero import zero_pages, zero_pages_host

Operand = Any
"""A torch tensor (Triton) or a numpy view of it (host)."""


class Backend(Protocol):
    """What the allocator asks of a backend. The operations are specified in their modules."""

    name: str
    launches: int
    device_to_host_copies: int
    host_to_device_copies: int

    def operand(self, tensor: torch.Tensor) -> Operand:
        """The form in which the operations take ``tensor``; shares its memory."""

    def tensor(self, operand: Operand) -> torch.Tensor:
        """The tensor behind an operand; shares its memory."""

    def staging(self, word_count: int) -> Staging:
        """A transfer buffer of ``word_count`` int64 words."""

    def read_back(self, parts: Sequence[Operand], staging: Staging) -> Words:
        """Bring int64 ``parts`` to the host, end to end, in one launch and one copy; waits."""

    def upload(self, staging: Staging, word_count: int) -> Operand:
        """Send the first words of ``staging.host`` to the device in one copy; does not wait."""

    def check_page_bytes(self, buffer: torch.Tensor, page_bytes: int) -> None:
        """Raise ValueError if ``copy_pages`` would refuse pages of this size in this buffer."""

    def gather_virtual(self, *arguments: Any) -> None:
        """See ``kernels.gather``."""

    def copy_pages(self, *arguments: Any) -> None:
        """See ``kernels.copy``."""

    def move_pages(self, buffer: Operand, page_bytes: int, *batch: Operand) -> None:
        """``copy_pages`` and ``rebind`` of one batch in one launch.

        ``batch``: v2p, p2v, sources, targets, virtual_ids, record, as ``rebind`` takes them.
        """

    def rebind(self, *arguments: Any) -> None:
        """See ``kernels.rebind``."""

    def bind(self, *arguments: Any) -> torch.Tensor:
        """See ``kernels.bind``."""

    def bind_borrowed(self, *arguments: Any) -> None:
        """See ``kernels.borrow``."""

    def unbind(self, *arguments: Any) -> None:
        """See ``kernels.bind``."""

    def translate(self, *arguments: Any) -> torch.Tensor:
        """See ``kernels.translate``."""

    def translate_tokens(self, *arguments: Any) -> None:
        """See ``kernels.translate``."""

    def unbind_tokens(self, *arguments: Any) -> None:
        """See ``kernels.token_free``."""

    def unbind_group(self, *arguments: Any) -> None:
        """See ``kernels.token_group``; one upload as well."""

    def unbind_run(self, *arguments: Any) -> None:
        """See ``kernels.token_run``."""

    def bind_tokens(self, *arguments: Any) -> torch.Tensor:
        """See ``kernels.token_grow``."""

    def decode(self, *arguments: Any) -> torch.Tensor:
        """See ``kernels.token_grow``."""

    def extend(self, *arguments: Any) -> torch.Tensor:
        """See ``kernels.token_extend``."""

    def zero_pages(self, *arguments: Any) -> None:
        """See ``kernels.zero``."""

    def assign(self, target: Operand, source: Operand) -> None:
        """Copy int64 words on the device."""


class TritonBackend:
    """Triton kernels on the tensors of one device (CPU tensors in the interpreter)."""

    name = "triton"

    def __init__(self, device: torch.device) -> None:
        interpreted = isinstance(_rebind_kernel, InterpretedFunction)
        if device.type == "cpu" and not interpreted:
            raise ValueError(
                "backend: 'triton' on device cpu needs TRITON_INTERPRET=1 set before the import"
            )
        self.device = device
        self.launches = 0
        self.device_to_host_copies = 0
        self.host_to_device_copies = 0

    def operand(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def tensor(self, operand: torch.Tensor) -> torch.Tensor:
        """The operand itself."""
        return operand

    def staging(self, word_count: int) -> Staging:
        """Pinned host words and their twin on the device."""
        return Staging(word_count, self.device)

    def read_back(self, parts: Sequence[torch.Tensor], staging: Staging) -> Words:
        """One concatenation on the device, one copy into pinned memory, which waits."""
        word_count = sum(part.numel() for part in parts)
        self.launches += 1
        torch.cat(list(parts), out=staging.device[:word_count])
        self.device_to_host_copies += 1
        staging.pinned[:word_count].copy_(staging.device[:word_count])
        return staging.host[:word_count]

    def upload(self, staging: Staging, word_count: int) -> torch.Tensor:
        """One copy out of pinned memory, in stream order."""
        self.host_to_device_copies += 1
        device: torch.Tensor = staging.device
        device[:word_count].copy_(staging.pinned[:word_count], non_blocking=True)
        return device

    def check_page_bytes(self, buffer: torch.Tensor, page_bytes: int) -> None:
        """32-bit unit arithmetic limits the size of a page."""
        copy_form(buffer, page_bytes)

    def assign(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """One copy inside the device."""
        self.launches += 1
        target.copy_(source)

    def move_pages(self, buffer: torch.Tensor, page_bytes: int, *batch: torch.Tensor) -> None:
        """The copy kernel rebinds as well."""
        v2p, p2v, sources, targets, virtual_ids, record = batch
        rebinding = Rebinding(v2p, p2v, virtual_ids)
        self.copy_pages(buffer, sources, targets, page_bytes, record, rebinding)

    bind = counted(bind)
    bind_borrowed = counted(bind_borrowed)
    unbind = counted(unbind)
    gather_virtual = counted(gather_virtual)
    copy_pages = counted(copy_pages)
    rebind = counted(rebind)
    translate = counted(translate)
    translate_tokens = counted(translate_tokens)
    unbind_tokens = counted(unbind_tokens)
    unbind_group = uploading(unbind_group)
    unbind_run = counted(unbind_run)
    bind_tokens = counted(bind_tokens)
    decode = counted(decode)
    extend = counted(extend)
    zero_pages = counted(zero_pages)


class HostBackend:
    """The host twins on numpy views of CPU tensors. A twin's call counts as a launch."""

    name = "host"

    def __init__(self) -> None:
        self.launches = 0
        self.device_to_host_copies = 0
        self.host_to_device_copies = 0

    def operand(self, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        """A numpy view."""
        return tensor.numpy()

    def tensor(self, operand: np.ndarray[Any, Any]) -> torch.Tensor:
        """A tensor over the same memory."""
        return torch.from_numpy(operand)

    def staging(self, word_count: int) -> Staging:
        """Host words; both sides are one buffer."""
        return Staging(word_count, None)

    def read_back(self, parts: Sequence[Words], staging: Staging) -> Words:
        """Copies, so that a plan never reads a list that is written meanwhile."""
        self.launches += 1
        self.device_to_host_copies += 1
        host = staging.host
        end = 0
        for part in parts:
            start, end = end, end + part.size
            host[start:end] = part
        return host[:end]

    def upload(self, staging: Staging, word_count: int) -> Words:
        """Nothing to move."""
        self.host_to_device_copies += 1
        return staging.host

    def check_page_bytes(self, buffer: torch.Tensor, page_bytes: int) -> None:
        """The size is that of a numpy item."""
        if page_bytes > MAX_UNITS:
            raise ValueError(f"page_bytes: at most {MAX_UNITS}, got {page_bytes}")

    def assign(self, target: Words, source: Words) -> None:
        """One copy."""
        self.launches += 1
        target[:] = source

    def move_pages(self, buffer: Any, page_bytes: int, *batch: Words) -> None:
        """Both twins, counted as the one launch that they stand for."""
        _, _, sources, targets, _, record = batch
        self.copy_pages(buffer, sources, targets, page_bytes, record)
        rebind_host(*batch)

    bind_borrowed = counted(bind_borrowed_host)
    unbind = counted(unbind_host)
    gather_virtual = counted(gather_virtual_host)
    copy_pages = counted(copy_pages_host)
    rebind = counted(rebind_host)
    translate_tokens = counted(translate_tokens_host)
    unbind_tokens = counted(unbind_tokens_host)
    unbind_group = uploading(unbind_group_host)
    unbind_run = counted(unbind_run_host)
    zero_pages = counted(zero_pages_host)
    bind = giving_tensor(bind_host)
    translate = giving_tensor(translate_host)
    bind_tokens = giving_tensor(bind_tokens_host)
    decode = giving_tensor(decode_host)
    extend = giving_tensor(extend_host)


def choose_backend(name: str, device: torch.device) -> Backend:
    """The backend called ``name`` ("auto", "triton" or "host") for tensors on ``device``.

    "auto" is "host" on the CPU and "triton" elsewhere. Raises ValueError for another name, and for
    a backend that cannot serve the device.
    """
    if not isinstance(name, str) or name not in ("auto", "triton", "host"):
        raise ValueError(f"backend: expected 'auto', 'triton' or 'host', got {name!r}")
    if name == "auto":
        name = "host" if device.type == "cpu" else "triton"
    if name == "triton":
        return TritonBackend(device)
    if device.type != "cpu":
        raise ValueError(f"backend: 'host' serves CPU tensors, got device {device}")
    return HostBackend()
