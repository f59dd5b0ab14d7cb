"""A preload that takes for ever."""

import time

time.sleep(1000)
