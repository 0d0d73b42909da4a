"""Loads the plugin through SGLang's own registry, once, for all tests of this folder."""

import os
import warnings
from collections.abc import Iterator

import pytest
import torch

from .torchvision_stand_in import install

install()
os.environ["KVDEFRAG_SGLANG"] = "1"
os.environ.pop("SGLANG_PLUGINS", None)
torch.set_num_threads(1)

with warnings.catch_warnings():
    # Not ours to mend: what SGLang and its dependencies say when they are imported.
    warnings.simplefilter("ignore")
    from sglang.srt.plugins import load_plugins
    from sglang.test.unified_allocator_fixtures import setup_allocator_context

    load_plugins()


@pytest.fixture(autouse=True)
def allocator_context() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup_allocator_context()
        yield
