"""Applications of a user, for tests."""

import threading

from ray import serve


@serve.deployment
class Lengths:
    def __init__(self, scale=1.0):
        self.scale = scale

    async def __call__(self, request):
        rows = (await request.json())["rows"]
        return {"rewards": [self.scale * len(row["response"]) for row in rows]}


@serve.deployment
class Broken:
    def __init__(self):
        raise ValueError("no such head")


@serve.deployment
class Never:
    def __init__(self):
        threading.Event().wait()


app = Lengths.bind()
never = Never.bind()
broken = Broken.bind()
nothing = 3


def scaled(options):
    return Lengths.bind(**options)


def fails(options):
    raise ValueError("no weights here")
