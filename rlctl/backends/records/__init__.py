"""Log records, alike on every target: parsed out of lines, filtered by a query, and the last error among them."""
