"""The one compiled part, built where there is a C compiler; see `kernels.native.library`."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("kernels", "native")
FILES = sorted(FOLDER.rglob("*.[ch]"))
DIGEST = blake2b(digest_size=8)  # as `kernels.native.library.sources_digest` computes it
for file in FILES:
    DIGEST.update(file.read_bytes())

# No -march: each function that uses more than the base instruction set says so itself, and is
# chosen when it runs. Optional: without a compiler the package installs, and runs, without it.
setup(
    ext_modules=[
        Extension(
            "kernels.native._library",
            [str(file) for file in FILES if file.suffix == ".c"],
            depends=[str(file) for file in FILES if file.suffix == ".h"],
            include_dirs=[str(FOLDER)],
            define_macros=[("PW_SOURCES", f'"{DIGEST.hexdigest()}"')],
            extra_compile_args=["-std=gnu11", "-O3", "-g0", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread", "-lm"],
            optional=True,
        )
    ]
)
