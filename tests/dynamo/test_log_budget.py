from __future__ import annotations

import logging

from wavepp_worker.dynamo.log_budget import MOST_RECORDS, PERIOD_SECONDS, LogBudget


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("http", logging.ERROR, __file__, 1, text, args, None)


def test_so_many_records_pass_a_period_and_the_next_says_how_many_did_not() -> None:
    now = 0.0
    budget = LogBudget(lambda: now)
    passed = [budget.filter(record("from %s", number)) for number in range(MOST_RECORDS + 7)]
    assert passed == [True] * MOST_RECORDS + [False] * 7
    now = PERIOD_SECONDS
    late = record("from %s", "somebody")
    assert budget.filter(late)
    assert late.getMessage() == "from somebody (7 further records were left out before)"
    later = record("from %s", "100%")
    assert budget.filter(later)
    assert later.getMessage() == "from 100%"
