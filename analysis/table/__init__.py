"""A table: its rows, notes and missing cells, and its Markdown, LaTeX and CSV."""
