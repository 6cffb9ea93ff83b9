"""The options that a file of defaults may set, by command."""

from __future__ import annotations

# Whoever adds an option to this table has thought about a stranger who sets it.
FROM_FILE: dict[str, set[str]] = {
    "score": {"fail-on", "threads", "verbose"},
    "grid": {"fail-on", "threads"},
    "diff": {"fail-on"},
    "confirm": {"threads"},
}
