"""Compiling for devices that are not there, in a child process, and what the compiler returns."""
