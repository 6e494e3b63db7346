"""The use cases of runs, one verb a file."""
