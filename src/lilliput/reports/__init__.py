"""Tables, plots and text as one document, in HTML and Markdown; the report of a run."""
