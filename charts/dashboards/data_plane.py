"""What crosses between hosts, and who waits for whom?"""

from __future__ import annotations

from charts.dashboards.dashboard_spec import JOB, DashboardSpec, Panel, PanelRow, Query, gauge, rate

_RESIDENT = f"rljob_buffer_resident_bytes{{{JOB}}}"

_TRAFFIC = PanelRow(
    "Traffic",
    (
        rate(
            "Put by workers",
            "What producers hand to their data buffer, by edge.",
            "rljob_buffer_put_bytes_total",
            "Bps",
            by="edge",
        ),
        rate(
            "Received from other hosts",
            "What crosses the network, by edge.",
            "rljob_buffer_received_bytes_total",
            "Bps",
            by="edge",
        ),
        rate("Rows", "Rows that producers put, by edge.", "rljob_buffer_rows_total", "cps", by="edge"),
        gauge(
            "Bytes of a step",
            "All edges of a step, as the lead worker adds them up.",
            "rljob_data_plane_bytes",
            "bytes",
        ),
    ),
)

_WAITS = PanelRow(
    "Waits",
    (
        rate(
            "Waiting for producers",
            "Seconds per second in which consumers waited for a producer to finish.",
            "rljob_buffer_producer_wait_seconds_total",
            "short",
            by="edge",
        ),
        rate(
            "Waiting for transfers",
            "Seconds per second from the last producer's seal until the rows were in place.",
            "rljob_buffer_transfer_seconds_total",
            "short",
            by="edge",
        ),
        rate(
            "Gathering",
            "Seconds per second spent collecting rows for other hosts.",
            "rljob_buffer_gather_seconds_total",
            "short",
            by="edge",
        ),
    ),
)

_MEMORY = PanelRow(
    "Memory and balance",
    (
        Panel(
            "Resident rows and weights",
            "Arena in use on the fullest host, and its size, by what it is kept for.",
            "bytes",
            (
                Query(f"max by (rljob, group, of) ({_RESIDENT})", "{{rljob}} {{group}} {{of}}"),
                Query(f"max by (rljob, of) (rljob_buffer_capacity_bytes{{{JOB}}})", "{{rljob}} {{of}} size"),
            ),
            minimum=0,
        ),
        Panel(
            "Rows on disk",
            "Spill file in use on the fullest host, and its size.",
            "bytes",
            (
                Query(f"max by (rljob, group) (rljob_buffer_spill_used_bytes{{{JOB}}})", "{{rljob}} {{group}}"),
                Query(f"max by (rljob) (rljob_buffer_spill_limit_bytes{{{JOB}}})", "{{rljob}} size"),
            ),
            minimum=0,
        ),
        Panel(
            "Imbalance between hosts",
            "Bytes put by the busiest host over the mean of its group: 1 is even.",
            "short",
            (
                Query(
                    f"max by (rljob, group) (sum by (rljob, group, host) (rljob_buffer_put_bytes_total{{{JOB}}})) / "
                    f"avg by (rljob, group) (sum by (rljob, group, host) (rljob_buffer_put_bytes_total{{{JOB}}}))",
                    "{{rljob}} {{group}}",
                ),
            ),
            minimum=1,
        ),
        Panel(
            "Workers alive",
            "Of every pod; a gang with one missing is about to restart.",
            "short",
            (Query(f"sum by (rljob, group) (rljob_workers_alive{{{JOB}}})", "{{rljob}} {{group}}"),),
            minimum=0,
        ),
    ),
)

DATA_PLANE = DashboardSpec(
    "rljob-data-plane",
    "rljob / data plane",
    "Rows between data buffers: bytes, waits, memory.",
    (_TRAFFIC, _WAITS, _MEMORY),
)
