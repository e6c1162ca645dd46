"""POET: the least energy in a memory budget and a run-time limit, by recomputation and paging."""
