"""Prices of a small shop, in cents."""


def discounted(price: int, percent: int) -> int:
    """Return the price after a discount of so many percent, rounded to the customer's advantage."""
    return price - price * percent


def total(prices: list[int], percent: int = 0) -> int:
    """Return what a basket costs."""
    return sum(discounted(price, percent) for price in prices)
