import numpy as np
import pytest
import torch

from kvdefrag.perf.id_table import IdTable

ROWS, WIDTH = 7, 3


@pytest.fixture(params=["numpy", "torch"])
def table(request):
    table = IdTable(ROWS, WIDTH, torch.device("cpu"))
    if request.param == "torch":
        table._host = None  # as on a device
    return table


def test_rows_come_back_as_they_were_put(table):
    ids = torch.arange(1, 10)
    table.put([5, 0, 2], ids)
    assert table.take([5, 0, 2]).tolist() == ids.tolist()
    assert table.take([2, 1, 5]).tolist() == [7, 8, 9, 0, 0, 0, 1, 2, 3]


def test_what_was_taken_is_not_a_view(table):
    table.put([1], torch.tensor([1, 2, 3]))
    taken = table.take([1])
    table.put([1], torch.tensor([4, 5, 6]))
    assert taken.tolist() == [1, 2, 3]


def test_cells_and_row_heads(table):
    table.put_cells(np.array([6, 0]), np.array([2, 1]), torch.tensor([11, 12]))
    table.put_first(3, torch.tensor([21, 22]))
    assert table.take([6, 0, 3]).tolist() == [0, 0, 11, 0, 12, 0, 21, 22, 0]
    assert table.take_cells(np.array([0, 6, 6]), np.array([1, 0, 2])).tolist() == [12, 0, 11]
    assert table.between(6, 1, 3).tolist() == [0, 11]
    assert table.first(3, 2).tolist() == [21, 22]
    assert table.first(6, 3).tolist() == [0, 0, 11]
