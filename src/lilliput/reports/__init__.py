"""Documents of text, tables and plots in HTML and Markdown, and the report of a run."""
