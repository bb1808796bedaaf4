"""The seconds that a step takes: links, the schedule of a program, and its timelines."""
