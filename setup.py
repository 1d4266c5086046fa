"""The one compiled part, built where there is a C compiler; see `kernels.native.library`."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("kernels", "native")
SOURCES = sorted(str(path) for path in FOLDER.glob("*.c"))
HEADERS = sorted(str(path) for path in FOLDER.glob("*.h"))
DIGEST = blake2b(digest_size=8)  # as `kernels.native.library.sources_digest` computes it
for file in sorted(SOURCES + HEADERS):
    DIGEST.update(Path(file).read_bytes())

# No -march: each function that uses more than the base instruction set says so itself, and is
# chosen when it runs. Optional: without a compiler the package installs, and runs, without it.
setup(
    ext_modules=[
        Extension(
            "kernels.native._library",
            SOURCES,
            depends=HEADERS,
            define_macros=[("PW_SOURCES", f'"{DIGEST.hexdigest()}"')],
            extra_compile_args=["-std=gnu11", "-O3", "-g0", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread", "-lm"],
            optional=True,
        )
    ]
)
