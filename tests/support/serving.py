"""The service of `tests.support.app` as a process: `python -m tests.support.serving PORT_FILE [SEND_BUFFER]`.

It listens on a port of its own choice, which it writes into the file. `SEND_BUFFER` bounds what the kernel takes for readers that read nothing.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from pathlib import Path

import uvicorn

__all__: list[str] = []


def main(port_file: str, send_buffer: int = 0) -> None:
    app = importlib.import_module(os.environ.get("TEST_APP", "tests.support.app")).conductor.asgi()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    if send_buffer:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    Path(port_file).write_text(str(listening.getsockname()[1]))
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
