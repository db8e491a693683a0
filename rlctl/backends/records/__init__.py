"""Log records on every target: parsing of lines, filter by a query, and the last error of a process."""
