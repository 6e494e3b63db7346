"""One router a noun. Each endpoint parses, calls one use case, renders."""
