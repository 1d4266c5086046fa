"""`python -m tests.snapshots [NAME ...]`: write these snapshots anew, or all."""

from __future__ import annotations

import sys

from tests.snapshots.subjects import SUBJECTS, path_of, text_of

for name in sys.argv[1:] or SUBJECTS:
    path_of(name).write_text(text_of(name))
