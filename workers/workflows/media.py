"""Fan out and join: a video is cut into chunks, many workers encode them at once, and one step puts the clips together in order."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, Field

from conductor import Ctx, Results, Retry, Workflow

__all__ = ["Clip", "Video", "flow"]


class Video(BaseModel):
    """What a run is started with."""

    title: str
    seconds: int = Field(ge=0, le=1_000_000)
    chunk_seconds: int = Field(default=10, ge=1)


class Clip(BaseModel):
    """An encoded piece."""

    start: int
    digest: str


flow = Workflow("media", input=Video)


@flow.step
def split(video: Video) -> list[int]:
    """Where each chunk begins. The length of the list is known only now."""
    return list(range(0, video.seconds, video.chunk_seconds))


@flow.each(split, max_parallel=20, retry=Retry(max=3))
def encode(start: int, video: Video, ctx: Ctx) -> Clip:
    """Encode one chunk. Each chunk is retried, resumed and counted by itself."""
    ctx.log.debug("encoding from second %s", start)
    return Clip(start=start, digest=hashlib.sha256(f"{video.title}:{start}".encode()).hexdigest())


@flow.step
def stitch(encode: Results[Clip]) -> str:
    """Put the clips together. They come in the order of the chunks, read page by page, however many there are."""
    whole = hashlib.sha256()
    for clip in encode:
        whole.update(clip.digest.encode())
    return whole.hexdigest()
