"""A folder of runs as one page with tables and figures."""
