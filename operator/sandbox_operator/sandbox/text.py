"""Text for status and events: one line, printable, bounded."""

#: What a condition's message admits (sandbox_api.v1alpha1.Condition), with room for a sentence around it.
MAX_MESSAGE = 900


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """Printable text of at most ``limit`` characters; what cannot be printed, line ends too, becomes a space."""
    text = text[: limit * 4]
    cleaned = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def listed(items: list[str], limit: int = 10) -> str:
    """Some items, and how many more there are."""
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"
