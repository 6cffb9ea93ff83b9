"""All findings about the learning rate advise the rate to start with."""

from __future__ import annotations

from support.check_evidence import found, healthy


def test_a_rate_above_the_edge_is_advised_to_start_where_the_verdict_says():
    lines = {"start_here": 2.2e-4, "do_not_exceed": 3.9e-4, "likely_edge": 2e-3}
    seen = found(healthy(recipe={"learning_rate": 3e-2}, **lines))
    advised = {one.fix for one in seen.values() if "earning rate to" in one.fix}
    assert advised == {"Lower the learning rate to 2.2e-4."}


def test_a_lower_limit_of_another_check_still_counts():
    lines = {"start_here": 9e-3, "do_not_exceed": 1e-2, "likely_edge": 2e-2}
    seen = found(healthy(recipe={"learning_rate": 3e-2}, **lines))
    assert "published-rate" in seen
    assert not any("9e-3" in one.fix for one in seen.values())
