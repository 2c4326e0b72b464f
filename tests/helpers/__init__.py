"""Small files in the layouts of real data sets, for tests that read them."""
