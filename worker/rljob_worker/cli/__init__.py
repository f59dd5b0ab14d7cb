"""The command `rljob`. Every subcommand imports what it needs when it runs, so that `--help` and errors are instant."""


def main() -> None:
    """Entry point of the command line; never returns."""
    from rljob_worker.cli.app import app
    from rljob_worker.cli.failures import run_and_exit

    run_and_exit(app)
