"""CUDA graphs where there is no GPU: a capture keeps the launches, a replay runs them."""

from contextlib import contextmanager

import torch

from kvdefrag.kernels import translate


def stand_in_graphs(patch, replays=True):
    """The launches of ``translate`` that captures keep, one each; returns the list of them."""
    launches = []

    @contextmanager
    def capture(graph):
        launch = translate.launch
        patch.setattr(translate, "launch", lambda *a, **k: launches.append(lambda: launch(*a, **k)))
        yield
        patch.setattr(translate, "launch", launch)

    class Graph:
        def __init__(self):
            self.first = len(launches)

        def replay(self):
            if replays:
                launches[self.first]()

    patch.setattr(torch.cuda, "CUDAGraph", Graph)
    patch.setattr(torch.cuda, "graph", capture)
    patch.setattr(torch.cuda, "memory_stats", lambda device: {})
    return launches
