"""Dashboards and alert rules as data; `make dashboards` writes the chart's copies.

Every query names the labels that the chart's PodMonitors give to what they scrape: `namespace`, `rljob` (the job),
`group`, `host`, `attempt`; workers add `rank`, and `stage`, `edge`, `source` or `reward` where a metric has one each.
"""
