"""Percentiles, bounds, the report and its file: what a program compares later runs by."""

import json
import math

import pytest

from bench import report
from bench.figures import Bound, Figure, at_percentile, percentile, quicker, times, trimmed_mean
from bench.writes import KINDS, counted, flow_schema


@pytest.mark.parametrize(
    ("samples", "percent", "value"),
    [
        ([5.0], 50, 5.0),
        ([5.0], 99, 5.0),
        ([3, 1, 2, 4], 50, 2),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 101)), 100, 100),
        (list(range(1, 31)), 99, 30),
        (list(range(1, 201)), 99, 198),
        (list(range(1, 201)), 0.1, 1),
    ],
)
def test_percentile_is_a_sample_by_nearest_rank(samples, percent, value):
    assert percentile(samples, percent) == value


@pytest.mark.parametrize(("samples", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_there_is_no_percentile_of_nothing(samples, percent):
    with pytest.raises(ValueError, match="percentile"):
        percentile(samples, percent)


def test_a_bound_of_the_value():
    assert Figure("a", 12.0, "ms", bound=Bound("value", 12)).ok
    assert not Figure("a", 12.01, "ms", bound=Bound("value", 12)).ok
    assert str(Bound("value", 12)) == "value <= 12"


def test_a_bound_of_the_ratio():
    assert Figure("a", 1.0, "ms", 2.0, 15.0, Bound("ratio", 15, at_least=True)).ok
    assert not Figure("a", 1.0, "ms", 2.0, 14.9, Bound("ratio", 15, at_least=True)).ok
    assert str(Bound("ratio", 0.9, at_least=True)) == "ratio >= 0.9"


def test_what_could_not_be_compared_misses_its_bound():
    assert not Figure("a", 1.0, "ms", bound=Bound("ratio", 2)).ok
    assert not Figure("a", 1.0, "ms", 0.0, math.nan, Bound("ratio", 2)).ok
    assert not Figure("a", 1.0, "ms", 0.0, math.nan, Bound("ratio", 2, at_least=True)).ok


def test_without_a_bound_there_is_nothing_to_miss():
    assert Figure("a", 1e9, "ms").ok


def test_ratios_are_written_in_the_direction_of_their_bound():
    slower = times("start", [4.0, 2.0, 3.0], [1.0, 2.0, 1.5], "ms")
    assert (slower.value, slower.baseline, slower.ratio, slower.n) == (3.0, 1.5, 2.0, 3)
    assert (slower.low, slower.high) == (2.0, 4.0)
    faster = quicker("exec", [2.0], [80.0], "ms")
    assert faster.ratio == 40.0
    assert math.isnan(quicker("exec", [0.0], [80.0], "ms").ratio)


def test_stragglers_do_not_move_the_trimmed_mean():
    assert trimmed_mean([5.0]) == 5.0
    assert trimmed_mean([1.0] * 9 + [100.0]) == 1.0
    assert trimmed_mean([float(n) for n in range(20)]) == 9.5
    figure = times("start", [1.0] * 9 + [100.0], [2.0, 4.0], "ms", center=trimmed_mean)
    assert (figure.value, figure.baseline, figure.ratio) == (1.0, 3.0, 1 / 3)


def test_percentiles_of_both_are_compared():
    figure = at_percentile("share", 99, [1.0, 30.0], [2.0, 10.0], "ms")
    assert (figure.value, figure.baseline, figure.ratio) == (30.0, 10.0, 3.0)
    alone = at_percentile("share", 50, [1.0, 30.0], [], "ms")
    assert (alone.value, alone.baseline, alone.ratio) == (1.0, None, None)


def test_a_line_names_what_was_measured_and_whether_it_is_enough():
    missed = Figure("start.ready", 2000.0, "ms", 800.0, 2.5, Bound("ratio", 2.3), 30, 1500.0, 2600.0)
    said = report.line(missed)
    for part in (
        "start.ready",
        "2000 ms",
        "[1500..2600]",
        "baseline 800",
        "ratio 2.5",
        "n=30",
        "<= 2.3: MISSED",
    ):
        assert part in said
    assert "ok" in report.line(Figure("writes", 0.0, "writes", bound=Bound("value", 0)))
    assert "MISSED" not in report.line(Figure("told", 5.0, "ms"))


def test_the_file_holds_what_was_run_and_nothing_else(tmp_path):
    figures = [
        Figure("a", 1.23456789, "ms", bound=Bound("value", 1)),
        Figure("b", 2.0, "ms", 0.0, math.inf),
    ]
    path = tmp_path / "results" / "latest.json"
    report.write(report.document(figures, quick=True, groups=["operator"]), path)
    result = json.loads(path.read_text())
    assert set(result) == {"date", "commit", "machine", "quick", "groups", "ok", "figures"}
    assert result["ok"] is False
    assert result["groups"] == ["operator"]
    first, second = result["figures"]
    assert first == {
        "name": "a",
        "value": 1.2346,
        "unit": "ms",
        "baseline": None,
        "ratio": None,
        "bound": "value <= 1",
        "ok": False,
        "n": 1,
        "low": None,
        "high": None,
        "note": "",
    }
    assert second["ratio"] is None
    assert [path.name for path in path.parent.iterdir()] == ["latest.json"]


def test_missed_figures_decide_the_end():
    kept, lost = Figure("a", 1, "", bound=Bound("value", 1)), Figure("b", 2, "", bound=Bound("value", 1))
    assert report.missed([kept, lost]) == [lost]


def test_writes_are_read_from_the_counters_of_our_flow_schemas_alone():
    name = "apiserver_flowcontrol_dispatched_requests_total"
    metrics = "\n".join(
        [
            f"# TYPE {name} counter",
            f'{name}{{flow_schema="mine-pod",priority_level="workload-low"}} 3',
            f'{name}{{flow_schema="mine-status",priority_level="workload-low"}} 1e+01',
            f'{name}{{flow_schema="mine-status",priority_level="other"}} 2',
            f'{name}{{flow_schema="service-accounts",priority_level="workload-low"}} 441',
            f'another_{name}{{flow_schema="mine-pod"}} 7',
        ]
    )
    assert counted(metrics, "mine") == {"pod": 3, "status": 12}


def test_every_write_matches_some_flow_schema_and_events_match_first():
    schemas = [flow_schema(kind, kind, 100 + n, "ns", "sa") for n, kind in enumerate(KINDS)]
    first, last = (s["spec"]["rules"][0]["resourceRules"][0] for s in (schemas[0], schemas[-1]))
    assert first["resources"] == ["events", "leases"]
    assert (last["apiGroups"], last["resources"]) == (["*"], ["*"])
    assert all(s["spec"]["matchingPrecedence"] < 9000 for s in schemas)  # before that of service accounts
