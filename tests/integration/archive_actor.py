"""What a test's other processes do with an archive: `python -m` is not possible here, so the file itself is run.

open URL             open it, wait for a line on stdin before that, say how many runs it has
flood URL SIZE       put batches for ever, each with a number of its own as key, and say each number once its put returned
"""

from __future__ import annotations

import sys

from conductor.archive import Archive
from tests.support.archived import finished


def main(verb: str, url: str, size: str = "1") -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    archive = Archive.open(url, "shop")
    if verb == "open":
        archive.put([finished()])
        print(archive.count(), flush=True)
        return
    number = 0
    while True:
        tags = (f"batch{number}", "flood")
        archive.put([finished(key=str(number), tags=tags, snapshot=str(number).encode() * 20_000) for _ in range(int(size))])
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
