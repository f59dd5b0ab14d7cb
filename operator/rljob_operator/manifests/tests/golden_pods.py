"""Golden files: the second pod of a job, for every vendor, and a model beside it: its pod, and its RayService.

python -m rljob_operator.manifests.tests.golden_pods        writes them anew
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from rljob_api.catalogue.profiles import DEFAULT
from rljob_operator.gangs.pod_groups import Volcano
from rljob_operator.manifests.pod.pods import pods
from rljob_operator.manifests.serving.pod import service_pod
from rljob_operator.manifests.serving.ray_service import ray_service
from rljob_operator.manifests.tests.builders import make_context, vendor_context

GOLDEN = Path(__file__).parent / "golden"

PRODUCTS = {
    "nvidia-a100-40gb": "nvidia", "nvidia-a100-80gb": "nvidia", "nvidia-h200": "nvidia", "nvidia-b200": "nvidia",
    "nvidia-l40s": "nvidia", "ascend-910b": "ascend-910", "metax-c500": "metax", "amd-mi300x": "amd",
}  # fmt: skip
"""Profiles that say nothing new but how much memory there is and which nodes have it, and those they are like."""
VENDORS = [name for name in DEFAULT if name not in PRODUCTS]


class _Dumper(yaml.SafeDumper):
    """Writes equal values out instead of pointing at the first, and long texts line by line."""

    def ignore_aliases(self, data):
        return True

    def represent_str(self, data):
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def rendered(profile):
    """The text of a golden file."""
    context = vendor_context(profile)
    context.written.__dict__["hash"] = "f" * 64  # another field in the spec does not change a pod
    pod = pods(context, 1)[1]
    if "Volcano" in DEFAULT[profile].schedulers:
        pod = Volcano().shape(context, pod)
    return _text(pod)


def rendered_service(profile="cpu"):
    """The text of the golden file of a model's pod."""
    context = _judged_context(profile)
    return _text(service_pod(context, context.spec.services[0], 3))


def rendered_ray_service(profile="cpu"):
    """The text of the golden file of a model's RayService."""
    context = _judged_context(profile, {"rayServices": True})
    return _text(ray_service(context, context.spec.services[0], 3))


SERVED = {
    "service": rendered_service,
    "ray-service": rendered_ray_service,
    "service-nvidia-h100": lambda: rendered_service("nvidia-h100"),
    "ray-service-nvidia-h100": lambda: rendered_ray_service("nvidia-h100"),
}
"""What writes the golden file of each name."""


def _judged_context(profile, settings=None):
    """A job with a model, and with what a real one has besides."""
    container = {"name": "service", "resources": {"limits": {"memory": "8Gi"}}}
    judge = {
        "name": "my_judge",
        "run": "rljob_worker.services:judge",
        "workerGroup": {
            "accelerator": {"profile": profile, "count": 1 if profile == "cpu" else 2},
            "template": {"spec": {"containers": [container]}},
        },
        "autoscaling": {"maxReplicas": 2},
        "options": {"path": "models/judge", "rubric": "{response}"},
    }
    overrides = (f"services={json.dumps([judge])}", "storage={persistentVolumeClaim: team-a}")
    context = make_context(*overrides, settings=settings)
    context.written.__dict__["hash"] = "f" * 64
    return context


def _text(manifest):
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=120)


def main():
    GOLDEN.mkdir(exist_ok=True)
    for stale in GOLDEN.glob("*.yaml"):
        stale.unlink()
    for profile in VENDORS:
        (GOLDEN / f"{profile}.yaml").write_text(rendered(profile), encoding="utf-8")
    for name, render in SERVED.items():
        (GOLDEN / f"{name}.yaml").write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
