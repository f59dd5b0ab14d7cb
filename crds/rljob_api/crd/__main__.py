"""`python -m rljob_api.crd [--chart]`: the CustomResourceDefinition on standard output."""

import argparse
import sys

from rljob_api.crd.definition import chart_text, definition_text

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m rljob_api.crd", description=__doc__)
    parser.add_argument("--chart", action="store_true", help="the template of the Helm chart")
    sys.stdout.write(chart_text() if parser.parse_args().chart else definition_text())
