"""The command line: verbs, exit codes, what a person sees. A verb imports what is heavy only when it is called."""
