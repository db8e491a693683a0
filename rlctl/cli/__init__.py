"""The command line: verbs, exit codes, output for people. A verb imports heavy packages only when it is called."""
