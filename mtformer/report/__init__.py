"""What came of runs, as a page and as figures."""
