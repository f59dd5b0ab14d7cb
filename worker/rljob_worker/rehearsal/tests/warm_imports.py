"""Users' functions imported in forks of a warm interpreter, in place of a fresh one for each rehearsal."""

import os

from rljob_worker.rehearsal.functions.imports import Imports
from rljob_worker.tests.warm import WarmProcess


class WarmImporting(WarmProcess):
    """As `Imports` starts it: it has read what waits, and answers on `stdout`."""

    def __init__(self, imports: Imports) -> None:
        asked, ask = os.pipe()
        answers, answer = os.pipe()
        os.write(ask, imports.message)
        os.close(ask)
        module = "rljob_worker.rehearsal.functions.importing"
        super().__init__(module, environment=imports.environment, stdin=asked, stdout=answer)
        os.close(asked)
        os.close(answer)
        self.stdout = os.fdopen(answers, "rb")
