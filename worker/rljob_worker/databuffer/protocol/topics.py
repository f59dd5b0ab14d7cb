"""What travels over the tree of hosts beside layouts: workers' reports to the lead, and what it tells them all."""

from __future__ import annotations

REPORT = "report"
OPENING = "opening"
VERDICT = "verdict"
