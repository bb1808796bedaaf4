"""Mappings from axis names to mesh axes: values, and warnings of mistyped names."""
