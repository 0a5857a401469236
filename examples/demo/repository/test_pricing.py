from pricing import discounted, total


def test_a_tenth_off():
    assert discounted(2000, 10) == 1800


def test_no_discount_changes_nothing():
    assert discounted(999, 0) == 999


def test_a_basket_is_discounted_item_by_item():
    assert total([1000, 500], percent=20) == 1200
