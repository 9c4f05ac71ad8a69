"""Exit statuses of ``sweep gate``, by outcome."""

EXIT_CODES = {
    "keep": 0,
    "ready": 0,
    "confirmed": 0,
    "discard": 10,
    "unconfirmed": 10,
    "more": 11,
    "ended": 12,
}
