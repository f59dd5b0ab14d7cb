"""A preload that leaves a thread behind, as some libraries do."""

import threading

_HELD = threading.Event()
threading.Thread(target=_HELD.wait, daemon=True).start()
