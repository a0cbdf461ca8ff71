"""From run folders to tables, figures and a report. Reads folders only; knows no model.

`collect.load` gives tidy tables, `tables.tables` the tables of a paper,
`report.write_report` all of it as one folder, `status.status` the state of every cell.
"""
