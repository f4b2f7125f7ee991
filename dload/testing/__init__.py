"""Contract suites and fault tools for tests, dload's own and others'. Nothing of dload imports them at run
time."""
