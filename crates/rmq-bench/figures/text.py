"""Numbers and tables as text."""

import math


def short(number):
    """A number with three significant digits, without an exponent."""
    digits = max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
    return f"{number:.{digits}f}"


def significant(number):
    """A label of an axis: without digits that say nothing."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


def ratio(number):
    return f"{number:.2f}" if number < 9.95 else f"{number:.1f}" if number < 99.5 else f"{number:.0f}"


def span(numbers):
    """The least and the greatest number, as text."""
    low, high = ratio(min(numbers)), ratio(max(numbers))
    return low if low == high else f"{low} to {high}"


def listed(parts):
    """`a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def table(header, rows):
    """A Markdown table; rows without numbers are left out."""
    rows = [row for row in rows if any(cell != "-" for cell in row[1:])]
    if not rows:
        return []
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    cells = [[row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))] for row in [header, *rows]]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return ["| " + " | ".join(row) + " |" for row in [cells[0], rule, *cells[1:]]]


def wrapped(text, indent=""):
    """Lines of at most 120 characters."""
    import textwrap

    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)
