"""Simulators: long-lived processes with environments of gymnasium's API, observations in memory that they share."""
