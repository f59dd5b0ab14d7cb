"""Applications of a user, for tests."""

import os
import threading
from pathlib import Path

from ray import serve


class OfLengths:
    def __init__(self, scale=1.0):
        self.scale = scale

    async def __call__(self, request):
        rows = (await request.json())["rows"]
        return {"rewards": [self.scale * len(row["response"]) for row in rows]}


@serve.deployment
class Lengths(OfLengths):
    pass


@serve.deployment
class Broken:
    def __init__(self):
        raise ValueError("no such head")


@serve.deployment
class Never:
    def __init__(self):
        threading.Event().wait()


@serve.deployment(health_check_period_s=0.2)
class Mortal(OfLengths):
    """Dies of every request, and cannot start again while a file is there."""

    def __init__(self, grave):
        super().__init__()
        self.grave = Path(grave)
        if self.grave.exists():
            raise ValueError("dead")

    async def __call__(self, request):
        if "die" in await request.json():
            self.grave.touch()
            os._exit(1)
        return await super().__call__(request)


app = Lengths.bind()
never = Never.bind()
broken = Broken.bind()
nothing = 3


def scaled(options):
    return Lengths.bind(**options)


def fails(options):
    raise ValueError("no weights here")


def mortal(options):
    return Mortal.bind(**options)
