"""Arrays that follow block tables show what the tables hold, whatever happens to these."""

import random
from typing import cast

import numpy as np
import numpy.typing as npt

from engine.api import Kind, Namespaces
from engine.batch.batch import TableMirror
from engine.blocks.pool import BlockPool
from engine.blocks.table import BlockTable

BLOCK = 4


def test_an_array_follows_its_table_through_growth_copies_forks_and_new_admissions() -> None:
    rng = random.Random(1)
    pool, mirror = BlockPool(400), TableMirror()
    namespaces = Namespaces(shared_key=b"k" * 32, private_key=b"k" * 32)
    tables = {BlockTable(pool, BLOCK, "a", namespaces, b"", up_to=0): 0 for _ in range(4)}
    copies = 0
    for _ in range(2000):
        table = rng.choice(list(tables))
        action = rng.random()
        if not tables[table]:
            tables[table] = rng.randint(1, 60)
            table.admit(tables[table], [[]])
        elif action < 0.1:
            table.release()
            tables[table] = 0
        elif action < 0.15 and len(tables) < 8:
            tables[table.fork()] = tables[table]
        elif action < 0.2 and len(tables) > 2:
            table.release()
            del tables[table]
        elif tables[table] < 150:
            tables[table] += 1
            if table.writes_shared(tables[table]):
                table.copy_on_write(tables[table])
                copies += 1
            table.grow(tables[table])
        pool.check()
        for table in rng.sample(list(tables), 2):
            assert mirror.row(table).tolist() == table.blocks
    assert copies > 20


class Held:
    """In place of a table of two kinds, of which the second forgets."""

    def __init__(self, pages: npt.NDArray[np.int32], kinds: tuple[Kind, ...]) -> None:
        self.pool = BlockPool(0, kinds=kinds)
        self.pool.pages = pages
        self.rows: list[list[int]] = [[], []]


def test_an_array_has_all_pages_of_every_kinds_blocks() -> None:
    rng = random.Random(2)
    kinds = (Kind(pages=2), Kind(window=9, pages=3))
    pages = np.array(rng.sample(range(5000), 1000 * 3), np.int32).reshape(1000, 3)
    tables, mirror = [Held(pages, kinds) for _ in range(3)], TableMirror(kinds)
    longest = 0
    for _ in range(1500):
        table = rng.choice(tables)
        action = rng.random()
        if action < 0.02:
            table.rows = [[rng.randrange(1000) for _ in range(5)] for _ in kinds]
            table.rows[1] = [-1, -1, *table.rows[1][: rng.randrange(1, 4)]]
        elif action < 0.2 and table.rows[0]:
            table.rows[0][-1] = rng.randrange(1000)
        elif action < 0.3:
            num_gone = rng.randrange(max(1, len(table.rows[1])))
            table.rows[1][:num_gone] = [-1] * num_gone
        else:
            for row in table.rows:
                row += [rng.randrange(1000) for _ in range(rng.randrange(4))]
        found = mirror.row(cast("BlockTable", table))
        full, window = (np.array(row, np.int32) for row in table.rows)
        assert (found[:2, : len(full)] == pages[full, :2].T).all()
        held = np.flatnonzero(window >= 0)
        assert (found[2:, held] == pages[window[held]].T).all()
        assert (found >= 0).all()
        longest = max(longest, found.shape[1])
    assert longest > 60
