"""Launchers refuse what a kernel could only misread, and name the argument and both values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvdefrag.kernels import (
    bind,
    borrow,
    copy,
    gather,
    launch,
    rebind,
    token_extend,
    token_free,
    token_grow,
    token_run,
    translate,
    zero,
)
from kvdefrag.kernels.take import Take

TAKE = Take(4, 1, 2, 5, 1, 1, 1, 3, 2, 1)


def int64(count: int, **options: Any) -> torch.Tensor:
    return torch.full((count,), -1, dtype=torch.int64, **options)


def arguments(name: str) -> dict[str, Any]:
    """Good arguments, in order, of the launcher called ``name``."""
    tables = {"v2p": int64(10), "p2v": int64(12)}
    pairs = {"sources": int64(4), "targets": int64(4)}
    record = {"record": torch.zeros(16, dtype=torch.int64)}
    lists = {"holes": int64(9), "holes_end": 5, "free_ids": int64(8), "free_ids_end": 4}
    taken = {"holes": int64(6), "free_ids": int64(5), **record, "take": TAKE}
    tokens = {"token_ids": int64(4), "page_size": 1}
    buffer = {"buffer": torch.zeros(96, dtype=torch.uint8)}
    return {
        "bind_borrowed": {
            **tables, "lender_v2p": int64(10), "marks": int64(10), "virtual_ids": int64(4),
            "holes": int64(6), **record, "take": TAKE, "serial": 1, "call_tag": 1,
        },
        "unbind_tokens": {
            **tables, "marks": int64(10), **tokens, "page_count": 4, **lists, **record,
            "serial": 1, "call_tag": 1,
        },
        "unbind_run": {**tables, **tokens, **lists, **record, "call_tag": 1},
        "bind_tokens": {**tables, **taken, "token_count": 4, "page_size": 1, "call_tag": 1},
        "decode": {**tables, "last_tokens": int64(4), "page_size": 1, **taken, "call_tag": 1},
        "extend": {
            **tables, "prefix_lens": int64(4), "new_lens": int64(4), "last_tokens": int64(4),
            "token_count": 4, "page_size": 1, **taken, "call_tag": 1,
        },
        "zero_pages": {
            **buffer, "page_bytes": 8, **tables, "holes": int64(6), **record, "take": TAKE,
        },
        "gather_virtual": {
            **tables, **pairs, "virtual_ids": int64(4), **record, "call_tag": 1,
        },
        "rebind": {**tables, **pairs, "virtual_ids": int64(4), **record},
        "copy_pages": {
            "buffer": torch.zeros(96, dtype=torch.uint8), **pairs, "page_bytes": 8, **record,
        },
        "bind": {
            **tables, "holes": int64(6), "free_ids": int64(5), **record, "take": TAKE,
            "call_tag": 1,
        },
        "unbind": {**tables, "virtual_ids": int64(4), **lists, **record, "call_tag": 1},
        "translate": {"v2p": int64(10), "virtual_ids": int64(4), "num_pages": 12},
        "translate_tokens": {
            "v2p": int64(10), "token_ids": int64(4), "out": int64(4), "num_pages": 12,
            "page_size": 16,
        },
    }[name]  # fmt: skip


LAUNCHERS: dict[str, Callable[..., Any]] = {
    "gather_virtual": gather.gather_virtual,
    "rebind": rebind.rebind,
    "copy_pages": copy.copy_pages,
    "bind": bind.bind,
    "bind_borrowed": borrow.bind_borrowed,
    "unbind": bind.unbind,
    "translate": translate.translate,
    "translate_tokens": translate.translate_tokens,
    "unbind_tokens": token_free.unbind_tokens,
    "unbind_run": token_run.unbind_run,
    "bind_tokens": token_grow.bind_tokens,
    "decode": token_grow.decode,
    "extend": token_extend.extend,
    "zero_pages": zero.zero_pages,
}

ANY_INTEGER_IDS = {
    ("unbind", "virtual_ids"), ("translate", "virtual_ids"), ("translate_tokens", "token_ids"),
    ("translate_tokens", "out"), ("unbind_tokens", "token_ids"), ("unbind_run", "token_ids"),
    ("decode", "last_tokens"), ("extend", "prefix_lens"), ("extend", "new_lens"),
    ("extend", "last_tokens"), ("bind_borrowed", "virtual_ids"),
}  # fmt: skip
TENSORS = [
    (name, argument)
    for name in LAUNCHERS
    for argument, value in arguments(name).items()
    if isinstance(value, torch.Tensor)
]
WORDS = [case for case in TENSORS if case not in ANY_INTEGER_IDS and case[1] != "buffer"]


@pytest.fixture(autouse=True)
def no_launch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keeps what would be launched instead of launching it."""
    launched: list[Any] = []
    modules = (
        bind, borrow, copy, gather, rebind, translate,
        token_extend, token_free, token_grow, token_run, zero,
    )  # fmt: skip
    for module in modules:
        monkeypatch.setattr(module, "launch", lambda *given, **_: launched.append(given))
    return launched


def refuses(name: str, argument: str, value: Any, *parts: object) -> None:
    """The launcher raises ValueError that starts with the argument and has all ``parts`` in it."""
    with pytest.raises(ValueError, match=rf"^{argument}: ") as error:
        LAUNCHERS[name](**{**arguments(name), argument: value})
    message = str(error.value)
    assert all(str(part) in message for part in parts), message


@pytest.mark.parametrize("name", LAUNCHERS)
def test_good_arguments_launch_once(name: str, no_launch: list[Any]) -> None:
    LAUNCHERS[name](**arguments(name))
    assert len(no_launch) == 1


@pytest.mark.parametrize(("name", "argument"), TENSORS)
@pytest.mark.parametrize("dtype", [torch.int16, torch.uint64, torch.float64, torch.bool])
def test_dtype(name: str, argument: str, dtype: torch.dtype, no_launch: list[Any]) -> None:
    value = arguments(name)[argument]
    refuses(name, argument, torch.zeros(value.numel(), dtype=dtype), dtype)
    assert no_launch == []


@pytest.mark.parametrize(("name", "argument"), WORDS)
def test_words_are_64_bits(name: str, argument: str, no_launch: list[Any]) -> None:
    value = arguments(name)[argument]
    refuses(name, argument, value.int(), "int64", "int32")
    assert no_launch == []


@pytest.mark.parametrize(("name", "argument"), TENSORS)
def test_shape(name: str, argument: str, no_launch: list[Any]) -> None:
    value = arguments(name)[argument]
    refuses(name, argument, value[None, None], "1-D", (1, 1, value.numel()))
    assert no_launch == []


@pytest.mark.parametrize(("name", "argument"), [*WORDS, ("copy_pages", "buffer")])
def test_stride(name: str, argument: str, no_launch: list[Any]) -> None:
    value = arguments(name)[argument].repeat_interleave(2)[::2]
    refuses(name, argument, value, "contiguous", tuple(value.shape))
    assert no_launch == []


@pytest.mark.parametrize(
    ("name", "argument"), [case for case in TENSORS if case[1] not in ("v2p", "buffer")]
)
def test_device(name: str, argument: str, no_launch: list[Any]) -> None:
    refuses(name, argument, arguments(name)[argument].to("meta"), "device cpu", "meta")
    assert no_launch == []


@pytest.mark.parametrize("name", LAUNCHERS)
def test_first_argument_alone_elsewhere(name: str, no_launch: list[Any]) -> None:
    given = arguments(name)
    first = next(iter(given))
    with pytest.raises(ValueError, match=r"^\w+: expected device meta, got cpu"):
        LAUNCHERS[name](**{**given, first: given[first].to("meta")})
    assert no_launch == []


@pytest.mark.parametrize(("name", "argument"), sorted(ANY_INTEGER_IDS))
def test_stride_of_ids(name: str, argument: str, no_launch: list[Any]) -> None:
    value = torch.empty_strided((4,), (2**31,), dtype=torch.int64, device="meta")
    refuses(name, argument, value, "stride of 2147483647 at most", f"({2**31},)")
    assert no_launch == []


SHORT = [
    ("gather_virtual", "virtual_ids", 4),
    ("gather_virtual", "record", 16), ("gather_virtual", "p2v", 1), ("gather_virtual", "v2p", 1),
    ("rebind", "virtual_ids", 4), ("rebind", "record", 16),
    ("copy_pages", "record", 16),
    ("bind", "holes", 6), ("bind", "free_ids", 5), ("bind", "record", 16), ("bind", "p2v", 1),
    ("unbind", "holes", 9), ("unbind", "free_ids", 8), ("unbind", "record", 16),
    ("bind_borrowed", "holes", 6), ("bind_borrowed", "lender_v2p", 10),
    ("bind_borrowed", "marks", 10), ("bind_borrowed", "record", 16), ("unbind_tokens", "marks", 10),
    ("unbind", "v2p", 1), ("translate", "v2p", 1), ("translate_tokens", "v2p", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "argument", "length"), SHORT)
def test_length(name: str, argument: str, length: int, no_launch: list[Any]) -> None:
    value = torch.zeros(length - 1, dtype=torch.int64)
    refuses(name, argument, value, f"at least {length}", f"got {length - 1}")
    assert no_launch == []


def test_length_of_the_head_slice(no_launch: list[Any]) -> None:
    given = {**arguments("bind"), "take": TAKE._replace(head=5)}
    with pytest.raises(ValueError, match=r"^holes: expected at least 7 elements, got 6"):
        bind.bind(**given)
    assert no_launch == []


@pytest.mark.parametrize("name", ["gather_virtual", "rebind", "copy_pages"])
@pytest.mark.parametrize("length", [3, 5])
def test_targets_are_as_many_as_sources(name: str, length: int, no_launch: list[Any]) -> None:
    refuses(name, "targets", int64(length), "expected 4", f"got {length}")
    assert no_launch == []


@pytest.mark.parametrize("out", [int64(3), int64(8).view(2, 4), int64(8).view(1, 8)])
def test_out_has_room_for_the_ids(out: torch.Tensor) -> None:
    refuses("translate_tokens", "out", out, "expected 4", f"got {list(out.shape)}")


@pytest.mark.parametrize(("page_size", "refused"), [(2**27, False), (2**30, True)])
def test_out_of_32_bits(page_size: int, refused: bool, no_launch: list[Any]) -> None:
    given = {**arguments("translate_tokens"), "page_size": page_size}
    given["out"] = torch.zeros(4, dtype=torch.int32)
    if refused:
        with pytest.raises(ValueError, match=rf"^out: int32 .* {12 * 2**30} "):
            translate.translate_tokens(**given)
    else:
        translate.translate_tokens(**given)
    assert len(no_launch) == (not refused)


def test_page_size(no_launch: list[Any]) -> None:
    refuses("translate_tokens", "page_size", 2**31, f"at most {2**31 - 1}", 2**31)
    assert no_launch == []


@pytest.mark.parametrize("page_bytes", [0, -1, 97])
def test_page_bytes(page_bytes: int, no_launch: list[Any]) -> None:
    refuses("copy_pages", "page_bytes", page_bytes, "1 to 96", page_bytes)
    assert no_launch == []


@pytest.mark.parametrize("name", LAUNCHERS)
def test_nothing_asked_nothing_launched(name: str, no_launch: list[Any]) -> None:
    given = arguments(name)
    empty = {
        "sources", "targets", "virtual_ids", "token_ids", "out", "prefix_lens", "new_lens",
        "last_tokens",
    }  # fmt: skip
    given.update({key: int64(0) for key in empty & given.keys()})
    given.update(dict.fromkeys({"token_count"} & given.keys(), 0))
    if "take" in given:
        given["take"] = TAKE._replace(page_count=0)
    result = LAUNCHERS[name](**given)
    assert result is None or (result.dtype, result.tolist()) == (torch.int64, [])
    assert no_launch == []


class Kernel:
    """Stands for a kernel: keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        return lambda *arguments, **constants: self.calls.append((grid, *arguments, constants))


def test_grid() -> None:
    kernel, data = Kernel(), int64(1)
    launch.launch(kernel, 2**31 - 1, data)
    with pytest.raises(ValueError, match=rf"^program_count: at most {2**31 - 1} .* got {2**31}"):
        launch.launch(kernel, 2**31, data)
    assert kernel.calls == [((2**31 - 1,), data, {})]
