"""`sp-profile check`: does a run keep its budgets, and is it no worse than another one?

===================  ===================================================================
`figures`             the figures a budget may be set for, how each is read from a report
`paths`               any other field of a report, by its dotted path
`budgets`             what is asked for: limits, ledger, findings, no regression
`config`              budgets from TOML files
`judge`, `regression` a report and its budgets -> verdicts
`result`              what a check found; `json`, `junit`, `markdown`, `terminal` show it
`api.check`           all of it, from Python
===================  ===================================================================
"""
