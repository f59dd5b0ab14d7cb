"""Services that only say that they are healthy: `fake_services.py HOW PORT`.

fine     until they are ended
refuses  end with 64 and last words
breaks   end with 75 and lines in the log
silent   never get healthy
FILE     get healthy; the first time they end with 75 as soon as there is such a file
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from rljob_worker.process.last_words import LastWords, write_last_words


def main(how, port):
    token = Path(os.environ["RLJOB_SERVICES_TOKEN_FILE"])
    print(f"2026-01-01 00:00:00,000 INFO rljob.start: services: {how[-8:]}, in 0.1 s", flush=True)
    if how == "refuses":
        write_last_words(LastWords(64, cause="InvalidJob: service \"judge\": no module 'mine'"))
        return 64
    if how == "breaks":
        print("Traceback:\n\n  ValueError: no head", flush=True)
        return 75
    if how == "silent":
        signal.pause()
    assert len(token.read_text()) == 64 and token.stat().st_mode & 0o777 == 0o600
    print(json.dumps({"ready": "services", "port": int(port) or 4321}), flush=True)
    if how == "fine" or int(port):
        signal.pause()
    while not Path(how).exists():
        time.sleep(0.01)
    return 75


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
