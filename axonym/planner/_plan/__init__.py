"""The result of a search: candidates by rank, as tables, pictures and files."""
