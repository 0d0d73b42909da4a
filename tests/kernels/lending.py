"""Tables of a pool that lends its ids, and of those that borrow them."""

from hypothesis import strategies as st

from .support import State, row, tables, words


@st.composite
def any_tables(draw: st.DrawFn) -> State:
    """A lender, its borrower, and a second borrower's v2p, with a few words overwritten."""
    state = tables(12, 11, draw(st.integers(0, 9)), draw(st.integers(0, 99)))
    state["lender_v2p"] = tables(12, 11, draw(st.integers(0, 9)), draw(st.integers(0, 99)))["v2p"]
    other = tables(12, 11, draw(st.integers(0, 4)), draw(st.integers(0, 99)))["v2p"]
    for table in ("v2p", "p2v"):
        values = row(state, table)
        for index in draw(st.sets(st.integers(1, 10), max_size=2)):
            values[index] = draw(st.integers(-2, 13))
        state[table] = words(values)
    state["holders"] = words(row(state, "lender_v2p") + other.inner.tolist())
    return {**state, "marks": words([0] * 11)}
