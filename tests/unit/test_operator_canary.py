"""When a feed counts as dead."""

from sandbox_operator.engine.canary import Canary


def test_a_quiet_feed_is_not_dead() -> None:
    assert Canary().silent_seconds() == 0.0


def test_a_write_that_does_not_come_back_is_counted_from_the_first_one() -> None:
    canary = Canary()
    canary.wrote("", "5")
    first = canary.silent_seconds()
    canary.wrote("", "6")
    assert canary.silent_seconds() >= first > 0.0
    canary.heard("", "5")
    assert canary.silent_seconds() == 0.0


def test_a_later_event_is_a_sign_of_life_as_well_and_an_earlier_one_is_not() -> None:
    canary = Canary()
    canary.wrote("", "5")
    canary.heard("", "4")
    assert canary.silent_seconds() > 0.0
    canary.heard("", "9")
    assert canary.silent_seconds() == 0.0
    canary.wrote("", "8")
    assert canary.silent_seconds() == 0.0


def test_watches_are_told_apart() -> None:
    canary = Canary()
    canary.wrote("a", "5")
    canary.heard("b", "9")
    assert canary.silent_seconds() > 0.0
