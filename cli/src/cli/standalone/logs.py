"""Keeps log files bounded while their writers keep them open for appending."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

LOOK_S = 10.0


async def keep_bounded(folders: Sequence[Path], max_bytes: int) -> None:
    """Until cancelled: a log above the size becomes `<name>.1`, and goes on empty."""
    while True:
        for folder in folders:
            await asyncio.to_thread(cut_all, folder, max_bytes)
        await asyncio.sleep(LOOK_S)


def cut_all(folder: Path, max_bytes: int) -> None:
    """Cut every log of a folder that is too large."""
    for log in folder.glob("*.log"):
        cut(log, max_bytes)


def cut(log: Path, max_bytes: int) -> None:
    """Cut one log. Writers append, so they go on at its new end; a line may be lost in between."""
    if log.stat().st_size <= max_bytes:
        return
    shutil.copyfile(log, log.with_suffix(".log.1"))
    with log.open("r+b") as file:
        file.truncate(0)
