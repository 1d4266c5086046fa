"""Arrays that follow block tables show what the tables hold, whatever happens to these."""

import random

from engine.api import Namespaces
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
