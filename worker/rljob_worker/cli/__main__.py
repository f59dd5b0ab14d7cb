"""`python -m rljob_worker.cli` is `rljob`."""

from rljob_worker.cli import main

if __name__ == "__main__":
    main()
