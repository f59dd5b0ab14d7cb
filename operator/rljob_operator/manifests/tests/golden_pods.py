"""Golden files: the second pod of a job, for every vendor.

python -m rljob_operator.manifests.tests.golden_pods        writes them anew
"""

from __future__ import annotations

from pathlib import Path

import yaml

from rljob_api.catalogue.profiles import DEFAULT
from rljob_operator.gangs.volcano import Volcano
from rljob_operator.manifests.pod.pods import pods
from rljob_operator.manifests.tests.builders import vendor_context

GOLDEN = Path(__file__).parent / "golden"


class _Dumper(yaml.SafeDumper):
    """Writes equal values out instead of pointing at the first."""

    def ignore_aliases(self, data):
        return True


def rendered(profile):
    """The text of a golden file."""
    context = vendor_context(profile)
    context.written.__dict__["hash"] = "f" * 64  # another field in the spec is no change of a pod
    pod = pods(context, 1)[1]
    if "Volcano" in DEFAULT[profile].schedulers:
        pod = Volcano().shape(context, pod)
    return yaml.dump(pod, Dumper=_Dumper, sort_keys=False, width=120)


def main():
    GOLDEN.mkdir(exist_ok=True)
    for stale in GOLDEN.glob("*.yaml"):
        stale.unlink()
    for profile in DEFAULT:
        (GOLDEN / f"{profile}.yaml").write_text(rendered(profile), encoding="utf-8")


if __name__ == "__main__":
    main()
