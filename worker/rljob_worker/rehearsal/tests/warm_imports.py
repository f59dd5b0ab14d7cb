"""Users' functions imported in forks of a warm interpreter, in place of a fresh one for each rehearsal."""

import os

from rljob_worker.tests.warm import WarmProcess


class WarmImporting(WarmProcess):
    """As `ImportingProcess` starts it: it is asked on `stdin`, and answers on `stdout`."""

    def __init__(self, environment) -> None:
        asked, ask = os.pipe()
        answers, answer = os.pipe()
        module = "rljob_worker.rehearsal.functions.importing"
        super().__init__(module, environment=environment, stdin=asked, stdout=answer)
        os.close(asked)
        os.close(answer)
        self.stdin, self.stdout = os.fdopen(ask, "wb"), os.fdopen(answers, "rb")
