"""Everything wrong with a job whose types are right, all at once."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.checks import algorithm, data, names, options, pictures, rewards, services, templates
from rljob_api.checks.generation import conversations, elastic, engine, simulators, teams, weights
from rljob_api.checks.step import columns, memory, policies, sampling, sizes, stages
from rljob_api.checks.subject import Subject, with_names_corrected
from rljob_api.checks.unsupported import check_unsupported
from rljob_api.v1alpha1 import RLJob
from rljob_api.vocabulary.problem import Problem

_AS_WRITTEN = (
    names.check_unique,
    names.check_references,
    services.check_services,
    services.check_calls,
    rewards.check_reward_fields,
    rewards.check_reward_networks,
    templates.check_templates,
    templates.check_own_variables,
    check_unsupported,
)

_CORRECTED = (
    stages.check_cycle,
    stages.check_purpose,
    stages.check_stage_models,
    policies.check_generation,
    policies.check_policy_rows,
    policies.check_full_kl,
    policies.check_policy_rewards,
    stages.check_stage_fields,
    stages.check_placement,
    algorithm.check_parts,
    algorithm.check_estimator,
    algorithm.check_loss,
    algorithm.check_kl,
    algorithm.check_correction,
    sampling.check_distribution,
    sampling.check_validation_sampling,
    sampling.check_stops,
    engine.check_engine,
    pictures.check_pictures,
    sampling.check_dynamic,
    sampling.check_max_mismatch,
    sampling.check_partial,
    conversations.check_conversation,
    simulators.check_simulator,
    simulators.check_progress,
    teams.check_team,
    sampling.check_resampling,
    sampling.check_source,
    options.check_optimizer,
    options.check_profile,
    options.check_validation,
    options.check_reward_stage,
    rewards.check_reward_weights,
    rewards.check_reward_models,
    rewards.check_spread,
    options.check_chat_template,
    data.check_urls,
    data.check_dataset_weights,
    data.check_stores,
    options.check_one_of,
    options.check_failure_rules,
    sizes.check_mini_batches,
    sizes.check_row_count,
    sizes.check_workers,
    sizes.check_accelerators,
    sizes.check_lengths,
    weights.check_transport,
    weights.check_staleness,
    weights.check_staging,
    weights.check_lease_rows,
    elastic.check_elastic_bounds,
    elastic.check_elastic_stages,
    elastic.check_elastic_job,
    columns.check_written_once,
)

_UPSTREAM = (stages.check_reachable, columns.check_produced, memory.check_data_buffer)
"""Questions that have no answer while there is a cycle, or nothing at its beginning."""


def problems_of(job: RLJob, profiles: Mapping[str, AcceleratorProfile] = built_in_profiles.DEFAULT) -> list[Problem]:
    """Every problem of the job, in the order of the checks; empty for a job that can run."""
    written = Subject(job.spec, profiles)
    subject = Subject(with_names_corrected(job.spec, written.model_names), profiles)
    checks = _CORRECTED + (_UPSTREAM if subject.makes_rows and not subject.resolution.graph.cycle() else ())
    problems = list(names.check_metadata(job.metadata))
    problems += (problem for check in _AS_WRITTEN for problem in check(written))
    problems += (problem for check in checks for problem in check(subject))
    return list(dict.fromkeys(problems))
