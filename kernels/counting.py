"""Operations as the methods of a backend, which counts what they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from .launch import Words


def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
    """``operation`` as a backend method that counts one launch."""

    @wraps(operation)
    def method(self: Any, *arguments: Any) -> Any:
        self.launches += 1
        return operation(*arguments)

    return method


def uploading(operation: Callable[..., Any]) -> Callable[..., Any]:
    """``counted`` for an operation that also uploads."""

    @wraps(operation)
    def method(self: Any, *arguments: Any) -> Any:
        self.launches += 1
        self.host_to_device_copies += 1
        return operation(*arguments)

    return method


def giving_tensor(twin: Callable[..., Words]) -> Callable[..., torch.Tensor]:
    """``counted`` for a twin whose result is to be a tensor."""

    @wraps(twin)
    def method(self: Any, *arguments: Any) -> torch.Tensor:
        self.launches += 1
        return torch.from_numpy(twin(*arguments))

    return method
