"""A job written in Python, and `Pipeline`: its DAG, the same object as the YAML's `dag`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rljob_api.v1alpha1 import Balance, DagSpec, Metadata, RLJob, RLJobSpec, StageSpec


def make_job(name: str, spec: RLJobSpec) -> RLJob:
    """A job of this name; what is wrong with it is found by `problems_of`, as for YAML."""
    return RLJob(api_version="rljob.dev/v1alpha1", kind="RLJob", metadata=Metadata(name=name), spec=spec)


class Pipeline:
    """Builds a DAG stage by stage.

        pipeline = (
            Pipeline("mine")
            .stage("rollout", run="Rollout")
            .stage("reward", run="Reward", after=["rollout"])
            .stage("score", run="my.module:score", after=["rollout"], reads=["response_ids"], writes=["style"])
        )
        job_spec = pipeline.into(spec)        # or: print(pipeline.to_yaml())

    A pipeline is never changed; `stage` returns a longer one.  Wrong types raise pydantic's ValidationError at once;
    everything else is found by `problems_of`, as for YAML.
    """

    def __init__(self, name: str, stages: Sequence[StageSpec] = ()) -> None:
        self.name = name
        self.stages = tuple(stages)

    def stage(
        self,
        name: str,
        *,
        run: str,
        models: Sequence[str] = (),
        group: str | None = None,
        after: Sequence[str] = (),
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        balance: Balance = "None",
        options: Mapping[str, Any] | None = None,
    ) -> Pipeline:
        """This pipeline and one more stage; arguments as in the YAML."""
        stage = StageSpec(
            name=name,
            run=run,
            models=tuple(models),
            group=group,
            after=tuple(after),
            reads=tuple(reads),
            writes=tuple(writes),
            rename=dict(rename or {}),
            balance=balance,
            options=dict(options or {}),
        )
        return Pipeline(self.name, (*self.stages, stage))

    def build(self) -> DagSpec:
        """The DAG.  Raises ValidationError for a pipeline without a stage."""
        return DagSpec(stages=self.stages)

    def into(self, spec: RLJobSpec) -> RLJobSpec:
        """`spec` with this DAG in place of its own."""
        return spec.model_copy(update={"dag": self.build()})

    def to_yaml(self) -> str:
        """The DAG as the `dag:` block of an RLJob, without what is at its default."""
        dag = self.build().model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return str(yaml.safe_dump({"dag": dag}, sort_keys=False, default_flow_style=None, width=120))
