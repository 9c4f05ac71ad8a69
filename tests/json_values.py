"""Values and settings for property tests."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# a loaded machine is slow in any example
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FINITE = JSON.filter(lambda value: "inf" not in repr(value))
RECORDS = st.lists(st.dictionaries(st.text(), FINITE, max_size=3), max_size=5)
