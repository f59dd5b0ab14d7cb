"""Arrays that tell how they are read."""

import numpy as np


class Indexed(np.ndarray):
    """Counts the values that are fetched through an index array, which takes eight bytes for each."""

    fetched = 0

    def __getitem__(self, key):
        Indexed.fetched += key.size if isinstance(key, np.ndarray) else 0
        return super().__getitem__(key)

    def take(self, indices, *args, **kwargs):
        Indexed.fetched += indices.size
        return super().take(indices, *args, **kwargs)
