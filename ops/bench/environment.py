"""The peers' own virtual environment, made when it is first needed and again when the pins change."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ops.bench.processes import ROOT

__all__ = ["peers_python"]

_PINS = Path(__file__).with_name("requirements-peers.txt")


def peers_python(say: Callable[[str], None]) -> str:
    """The interpreter of the peers' environment."""
    home = ROOT / ".conductor" / "bench-venv"
    python, stamp = home / "bin" / "python", home / "pins"
    digest = hashlib.sha256(_PINS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        say(f"installing the peers into {home.relative_to(ROOT)}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(_PINS)], check=True, stderr=subprocess.DEVNULL)
        stamp.write_text(digest)
    return str(python)
