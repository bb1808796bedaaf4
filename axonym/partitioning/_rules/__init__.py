"""The rules that choose specs for plain arrays: one file for each kind, and the search that they share."""
