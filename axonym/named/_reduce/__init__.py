"""Reductions over named axes, and functions along one axis.

Every reduction takes `axis`: one axis, several, or None for all of them, which the result lacks. A result without axes
is still a named array; its method `scalar` returns the plain array.
"""
