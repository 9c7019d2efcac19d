"""From a `Report` to what a person or a program reads: one file per output.

===================  ===================================================================
`build.build`         the per-rank results of a run -> `Report`
`json.render`         -> str, the machine-readable contract; `json.read_report` reads it back
`markdown.render`     -> str
`html.render`         -> str, one self-contained page; `html.render_comparison` for several runs
`tables.csv_tables`   -> {table: text}; `tables.parquet_tables` -> {table: bytes};
                      `tables.to_polars(report, table)` -> polars.DataFrame
`terminal.print_report`, `terminal.print_comparison`: on a rich console
===================  ===================================================================

All of them are pure but the last: who calls decides where the text goes.
"""
