"""The command line: parse, call, show. No decision is taken here."""
