"""What pictures may be, and where they may come from."""

from __future__ import annotations

from pydantic import ByteSize, Field

from app.settings.kinds import Count, Hosts, Seconds, Section


class PictureSettings(Section):
    """Of what clients send to a model that sees."""

    image_hosts: Hosts | None = Field(
        None,
        description="Hosts, with commas, that pictures are fetched from where a request has their "
        "URL (over https, at public addresses); others have to be sent.",
    )
    max_image_bytes: ByteSize = Field(
        ByteSize(20 * 1024**2),
        description="Files of one request's pictures; those that are sent are within "
        "max_message_bytes, too.",
    )
    max_image_pixels: Count = Field(40_000_000, description="Pixels of a picture.")
    image_seconds: Seconds = Field(
        20.0, description="How long a picture may take to be fetched, and then to be decoded."
    )
