"""Is the job learning, and what is it spending its time on?"""

from __future__ import annotations

from charts.dashboards.dashboard_spec import JOB, OF_POLICY, DashboardSpec, Panel, PanelRow, Query, gauge

_LEARNING = PanelRow(
    "Learning",
    (
        gauge("Reward", "Mean reward of the step's rows.", "rljob_reward_mean"),
        gauge(
            "Validation accuracy",
            "Mean reward of the held-out problems, greedy unless the job says otherwise.",
            "rljob_validation_accuracy_ratio",
            "percentunit",
            maximum=1.0,
        ),
        Panel(
            "Accuracy and success by task",
            "Held-out accuracy of each data set; success of the step's episodes in each task of a simulator.",
            "percentunit",
            (
                Query(
                    f"max by (rljob, source) (rljob_source_accuracy_ratio{{{JOB}}}) or "
                    f"max by (rljob, task) (rljob_simulator_task_success_ratio{{{JOB}}})",
                    "{{rljob}} {{source}}{{task}}",
                ),
            ),
            minimum=0,
            maximum=1.0,
        ),
        gauge("Reward by function", "Each reward function before weights.", "rljob_reward_component_mean", by="reward"),
        Panel(
            "Steps",
            "Finished steps, and steps that the last checkpoint holds.",
            "short",
            (
                Query(f"max by (rljob) (rljob_step{{{JOB}}})", "{{rljob}} done"),
                Query(f"max by (rljob) (rljob_checkpoint_step{{{JOB}}})", "{{rljob}} saved"),
                Query(f"max by (rljob) (rljob_total_steps{{{JOB}}})", "{{rljob}} planned"),
            ),
            minimum=0,
        ),
    ),
)

_POLICY = PanelRow(
    "Policy",
    (
        gauge(
            "KL to the reference", "Nats per token; a sudden rise is a policy that leaves.", "rljob_kl_reference_nats"
        ),
        gauge("KL to the old policy", "Nats per token within one step: how far an update goes.", "rljob_kl_old_nats"),
        gauge(
            "Mismatch of trainer and rollout",
            "Nats per token (K3) between what both say of the same tokens: rounding, or a fault.",
            "rljob_mismatch_k3_nats",
        ),
        Panel(
            "Staleness",
            "By how many policy versions the weights that drew a token are behind those that the step begins to train.",
            "short",
            (
                Query(f"max by ({OF_POLICY}) (rljob_staleness_mean_versions{{{JOB}}})", "{{rljob}} {{policy}} mean"),
                Query(f"max by ({OF_POLICY}) (rljob_staleness_max_versions{{{JOB}}})", "{{rljob}} {{policy}} largest"),
            ),
            minimum=0,
        ),
        gauge(
            "Groups in flight",
            "Prompts that are drawn and not known to be trained on, when a generating worker ends a step.",
            "rljob_groups_in_flight",
        ),
        Panel(
            "Unfinished responses",
            "With rollout.partial: groups and responses that go on after the step, and those cut off by maxCarries.",
            "short",
            (
                Query(f"max by ({OF_POLICY}) (rljob_unfinished_groups{{{JOB}}})", "{{rljob}} {{policy}} groups"),
                Query(f"max by ({OF_POLICY}) (rljob_unfinished_rows{{{JOB}}})", "{{rljob}} {{policy}} responses"),
                Query(f"max by ({OF_POLICY}) (rljob_carries_cut_off_rows{{{JOB}}})", "{{rljob}} {{policy}} cut off"),
            ),
            minimum=0,
        ),
        Panel(
            "Age of responses",
            "With rollout.partial: steps since the responses of the step's batch began.",
            "short",
            (
                Query(f"max by ({OF_POLICY}) (rljob_rows_age_mean_steps{{{JOB}}})", "{{rljob}} {{policy}} mean"),
                Query(f"max by ({OF_POLICY}) (rljob_rows_age_max_steps{{{JOB}}})", "{{rljob}} {{policy}} oldest"),
            ),
            minimum=0,
        ),
        gauge("Entropy", "Nats per token; towards 0 the policy stops exploring.", "rljob_policy_entropy_nats"),
        Panel(
            "Clipped tokens",
            "Share of tokens whose ratio left the trust region, below and above.",
            "percentunit",
            (
                Query(f"max by ({OF_POLICY}) (rljob_policy_clip_fraction_low{{{JOB}}})", "{{rljob}} {{policy}} low"),
                Query(f"max by ({OF_POLICY}) (rljob_policy_clip_fraction_high{{{JOB}}})", "{{rljob}} {{policy}} high"),
            ),
            minimum=0,
        ),
        gauge("Gradient norm", "Before clipping.", "rljob_gradient_norm"),
        gauge("Policy loss", "Of the last optimizer step of the step.", "rljob_policy_loss"),
        gauge("Learning rate", "Of the last optimizer step.", "rljob_learning_rate"),
        Panel(
            "Response length",
            "Tokens per response; at the limit, answers are cut off.",
            "short",
            (
                Query(
                    f"max by ({OF_POLICY}) (rljob_response_length_mean_tokens{{{JOB}}})", "{{rljob}} {{policy}} mean"
                ),
                Query(
                    f"max by ({OF_POLICY}) (rljob_response_length_max_tokens{{{JOB}}})", "{{rljob}} {{policy}} longest"
                ),
            ),
            minimum=0,
        ),
    ),
)

_CONVERSATIONS = PanelRow(
    "Conversations",
    (
        gauge("Turns", "Turns of the policy in a trajectory, in the mean.", "rljob_conversation_turns_mean"),
        Panel(
            "Failed conversations",
            "Part of the step's trajectories that failed and are left out, and by cause.",
            "percentunit",
            (
                Query(f"max by (rljob) (rljob_conversations_failed_ratio{{{JOB}}})", "{{rljob}} all"),
                Query(
                    f"max by (rljob, cause) (rljob_conversations_failed_cause_ratio{{{JOB}}})", "{{rljob}} {{cause}}"
                ),
            ),
            minimum=0,
        ),
        gauge("Tokens of the world", "Of the step; they are no actions.", "rljob_conversation_world_tokens"),
        gauge(
            "Figures of conversations",
            "Means of what run functions and environments report: calls, faults and errors of tools among them.",
            "rljob_conversation_figure_mean",
            by="figure",
        ),
        gauge("Turns by agent", "Turns of each agent of a team in a trajectory.", "rljob_agent_turns_mean", by="agent"),
        gauge(
            "Response length by agent",
            "Tokens that each agent of a team samples in a trajectory.",
            "rljob_agent_response_length_mean_tokens",
            by="agent",
        ),
        gauge(
            "Reward by agent", "Mean reward of agents that are rewarded apart.", "rljob_agent_reward_mean", by="agent"
        ),
    ),
)

_CRITIC = PanelRow(
    "Critic (PPO)",
    (
        gauge("Value loss", "Squared error of the critic.", "rljob_value_loss"),
        gauge(
            "Explained variance",
            "1: the critic foresees returns; 0: a constant would do as well.",
            "rljob_value_explained_variance",
            "percentunit",
        ),
    ),
)

_SPEED = PanelRow(
    "Speed",
    (
        gauge("Tokens per second", "Prompt and response tokens of a step over its time.", "rljob_tokens_per_second"),
        gauge("Step time", "Without validation and checkpoints.", "rljob_step_seconds", "s"),
        gauge("Time per stage", "The slowest worker of each stage.", "rljob_stage_seconds", "s", by="stage"),
        gauge(
            "Waiting for rows",
            "How long each stage waited for what it reads.",
            "rljob_stage_wait_seconds",
            "s",
            by="stage",
        ),
        Panel(
            "Idle workers",
            "Seconds of a step in which trainers, and generators, waited: for rows, verdicts, weights or room.",
            "s",
            (
                Query(f"max by (rljob) (rljob_trainers_idle_seconds{{{JOB}}})", "{{rljob}} trainers"),
                Query(f"max by (rljob) (rljob_generators_idle_seconds{{{JOB}}})", "{{rljob}} generators"),
            ),
            minimum=0,
        ),
        Panel(
            "Idle workers by cause",
            "What the idle seconds of trainers and generators were spent waiting for.",
            "s",
            (
                Query(
                    f"max by (rljob, role, cause) (rljob_idle_cause_seconds{{{JOB}}})", "{{rljob}} {{role}}: {{cause}}"
                ),
            ),
            minimum=0,
        ),
    ),
)

_GENERATORS = PanelRow(
    "Generators",
    (
        gauge(
            "Generators that take leases", "Pods of an elastic group, at the end of the step.", "rljob_generators_there"
        ),
        gauge(
            "Tokens by generator",
            "Tokens of the step's responses that each pod of an elastic group drew, of the first 64.",
            "rljob_generator_tokens",
            by="generator",
        ),
        gauge(
            "Leases given again",
            "Leases of lost or late generators that others got, since the attempt began.",
            "rljob_leases_given_again_total",
        ),
        gauge(
            "Late deliveries",
            "Rows that came after another generator's and were dropped, since the attempt began.",
            "rljob_leases_dropped_late_total",
        ),
    ),
)

_SERVICES = PanelRow(
    "Services",
    (
        gauge("Service latency", "Mean time of a request in the step.", "rljob_service_seconds", "s", by="service"),
        gauge(
            "Service queue",
            "Mean time that a row waits for a request.",
            "rljob_service_queue_seconds",
            "s",
            by="service",
        ),
        gauge("Service requests", "Of the step.", "rljob_service_requests", by="service"),
        gauge("Service errors", "Requests of the step that failed.", "rljob_service_errors", by="service"),
    ),
)

TRAINING = DashboardSpec(
    "rljob-training",
    "rljob / training",
    "Reward, policy and speed of RLJobs.",
    (_LEARNING, _POLICY, _CONVERSATIONS, _CRITIC, _SPEED, _GENERATORS, _SERVICES),
)
